/* weft/rma.hpp - remote memory in C++: regions of ours, remotes of others, and what is done with them.
 *
 *     weft::region region = rt.new_region({.len = 1 << 20, .name = "weights"});
 *     weft::region_key key = region.key();                                       bytes: send them to who may use it
 *
 *     weft::remote there = co_await ep.attach(key);                              or ep.find("weights")
 *     co_await there.write(0, values);
 *     double first = co_await there.read<double>(0);
 *     std::uint64_t before = co_await there.fetch_add<std::uint64_t>(64, 1);
 *
 * weft::remote gives its remote back when it goes; weft::remote_ref is a pointer with the same calls. weft::region frees its
 * region when it goes, without waiting: `co_await region.free()` says when memory of the program is its own again. What
 * weft/rma.h says of order, failures and threads holds here. */
#ifndef WEFT_RMA_HPP
#define WEFT_RMA_HPP

#include <weft/conn.hpp>
#include <weft/rma.h>

namespace weft {

/* --- regions -------------------------------------------------------------------------------------------------------------- */

/* As weft_region_opts_t: what is zero or empty is the default. */
struct region_options {
    std::uint64_t len = 0;
    std::uint64_t max_len = 0;
    bytes memory{}; /* of the program, instead of `len`: it stays until the region is freed */
    std::uint32_t rights = 0;
    const char *name = nullptr;
    std::uint32_t name_rights = 0;
    bool unmapped = false;
    weft_region_notify_fn notify = nullptr;
    void *user = nullptr;
    weft_region_opts_t more = WEFT_REGION_OPTS_INIT;

    weft_region_opts_t native() const noexcept
    {
        weft_region_opts_t o = more;
        if (memory.data()) {
            o.buf = memory.data();
            o.len = memory.size();
        }
        if (len)
            o.len = len;
        if (max_len)
            o.max_len = max_len;
        if (rights)
            o.rights = rights;
        if (name)
            o.name = name;
        if (name_rights)
            o.name_rights = name_rights;
        o.unmapped = o.unmapped || unmapped;
        if (notify) {
            o.notify = notify;
            o.user = user;
        }
        return o;
    }
};

/* A part of a region, what may be done with it, and for how long. */
struct key_options {
    std::uint64_t offset = 0;
    std::uint64_t len = 0;
    std::uint32_t rights = 0;
    std::chrono::nanoseconds lifetime{};
};

/* A key: a contiguous range of bytes. It is a secret. */
class region_key {
public:
    const unsigned char *data() const noexcept { return bytes_; }
    std::size_t size() const noexcept { return n_; }
    const unsigned char *begin() const noexcept { return bytes_; }
    const unsigned char *end() const noexcept { return bytes_ + n_; }

private:
    friend class region;
    std::size_t n_ = 0;
    unsigned char bytes_[WEFT_REGION_KEY_MAX];
};

namespace detail {

using region_free_spec = end_spec<weft_region_t, weft_region_free, void>;

struct revoke_spec {
    using value_type = void;
    weft_region_t *region;
    weft_status_t post(weft_op_t *op) noexcept { return weft_region_revoke(region, op); }
    void take(weft_op_t &) noexcept {}
};

} // namespace detail

class region {
public:
    region() noexcept = default;
    /* Takes it over. */
    explicit region(weft_region_t *r) noexcept : region_(r) {}
    region(region &&other) noexcept : region_(other.release()) {}
    region &operator=(region &&other) noexcept
    {
        if (this != &other) {
            end();
            region_ = other.release();
        }
        return *this;
    }
    ~region() { end(); }

    weft_region_t *native() const noexcept { return region_; }
    weft_region_t *release() noexcept { return std::exchange(region_, nullptr); }
    explicit operator bool() const noexcept { return region_ != nullptr; }

    /* Its first byte. */
    std::byte *data() const noexcept { return static_cast<std::byte *>(weft_region_base(region_)); }
    result<weft_region_info_t> try_info() const noexcept
    {
        weft_region_info_t info = WEFT_REGION_INFO_INIT;
        weft_status_t st = weft_region_get_info(region_, &info);
        return st ? result<weft_region_info_t>(st) : result<weft_region_info_t>(info);
    }
    weft_region_info_t info() const { return try_info().value(); }

    result<region_key> try_key(const key_options &opts = {}) const noexcept
    {
        weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
        o.offset = opts.offset;
        o.len = opts.len;
        o.rights = opts.rights;
        o.lifetime_ns = nanoseconds(opts.lifetime);
        region_key key;
        key.n_ = sizeof key.bytes_;
        weft_status_t st = weft_region_key(region_, &o, key.bytes_, &key.n_);
        return st ? result<region_key>(st) : result<region_key>(key);
    }
    region_key key(const key_options &opts = {}) const { return try_key(opts).value(); }

    result<void> try_extend(std::uint64_t len) const noexcept { return weft_region_extend(region_, len); }
    void extend(std::uint64_t len) const { try_extend(len).value(); }
    result<void> try_name(const char *name) const noexcept { return weft_region_name(region_, name); }
    void name(const char *name) const { try_name(name).value(); }

    /* Make every key given out so far stale; ends when no access with an old one is under way. */
    auto revoke() const noexcept { return action(detail::revoke_spec{region_}); }
    /* Free it; ends when memory of the program is its own again. It is gone from here on. */
    auto free() noexcept { return action(detail::region_free_spec(release())); }

private:
    void end() noexcept
    {
        if (region_)
            (void)weft_region_free(region_, nullptr);
    }
    weft_region_t *region_ = nullptr;
};

inline result<region> runtime_ref::try_region(const region_options &opts) const noexcept
{
    weft_region_opts_t o = opts.native();
    weft_region_t *r;
    weft_status_t st = weft_region_new(rt_, &o, &r);
    return st ? result<region>(st) : result<region>(region(r));
}
inline region runtime_ref::new_region(const region_options &opts) const { return try_region(opts).value(); }

/* --- remotes -------------------------------------------------------------------------------------------------------------- */

namespace detail {

struct read_spec {
    using value_type = void;
    weft_remote_t *remote;
    std::uint64_t offset;
    void *buf;
    std::size_t len;
    weft_status_t post(weft_op_t *op) noexcept { return weft_rma_read(remote, offset, buf, len, op); }
    void take(weft_op_t &) noexcept {}
};
template <plain_object T>
struct read_value_spec {
    using value_type = T;
    weft_remote_t *remote;
    std::uint64_t offset;
    T value = T();
    weft_status_t post(weft_op_t *op) noexcept { return weft_rma_read(remote, offset, std::addressof(value), sizeof value, op); }
    T take(weft_op_t &) noexcept { return value; }
};
struct write_spec {
    using value_type = void;
    weft_remote_t *remote;
    std::uint64_t offset;
    const void *buf;
    std::size_t len;
    weft_status_t post(weft_op_t *op) noexcept { return weft_rma_write(remote, offset, buf, len, op); }
    void take(weft_op_t &) noexcept {}
};
struct write_notify_spec {
    using value_type = void;
    weft_remote_t *remote;
    std::uint64_t offset;
    const_bytes buf;
    std::uint64_t told;
    weft_status_t post(weft_op_t *op) noexcept
    {
        return weft_rma_write_notify(remote, offset, buf.data(), buf.size(), told, op);
    }
    void take(weft_op_t &) noexcept {}
};
template <class Pieces, weft_status_t (*Do)(weft_remote_t *, std::uint64_t, const weft_iov_t *, std::size_t, weft_op_t *)>
struct rma_pieces_spec {
    using value_type = void;
    weft_remote_t *remote;
    std::uint64_t offset;
    Pieces pieces;
    weft_status_t post(weft_op_t *op) noexcept { return Do(remote, offset, pieces.data(), pieces.size(), op); }
    void take(weft_op_t &) noexcept {}
};
template <class T>
struct atomic_spec {
    using value_type = T;
    weft_remote_t *remote;
    weft_rma_atomic_t which;
    std::uint64_t offset;
    T operand, compare;
    weft_status_t post(weft_op_t *op) noexcept
    {
        return weft_rma_atomic(remote, which, offset, sizeof(T), word(operand), word(compare), op);
    }
    T take(weft_op_t &op) noexcept { return static_cast<T>(static_cast<std::make_unsigned_t<T>>(op.value)); }

private:
    static std::uint64_t word(T v) noexcept { return static_cast<std::make_unsigned_t<T>>(v); }
};
struct flush_spec {
    using value_type = void;
    weft_remote_t *remote;
    weft_status_t post(weft_op_t *op) noexcept { return weft_rma_flush(remote, op); }
    void take(weft_op_t &) noexcept {}
};
struct batch_spec {
    using value_type = std::size_t;
    std::span<weft_rma_item_t> items;
    weft_status_t post(weft_op_t *op) noexcept { return weft_rma_batch(items.data(), items.size(), op); }
    std::size_t take(weft_op_t &op) noexcept { return static_cast<std::size_t>(op.count); }
};

/* Numbers that atomics are done with. */
template <class T>
concept word = std::integral<T> && !std::is_same_v<T, bool> && (sizeof(T) == 4 || sizeof(T) == 8);

} // namespace detail

/* Memory of a peer, attached by somebody else. */
class remote_ref {
public:
    remote_ref(weft_remote_t *r = nullptr) noexcept : remote_(r) {}
    weft_remote_t *native() const noexcept { return remote_; }
    explicit operator bool() const noexcept { return remote_ != nullptr; }

    result<weft_remote_info_t> try_info() const noexcept
    {
        weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
        weft_status_t st = weft_remote_get_info(remote_, &info);
        return st ? result<weft_remote_info_t>(st) : result<weft_remote_info_t>(info);
    }
    weft_remote_info_t info() const { return try_info().value(); }

    auto read(std::uint64_t offset, bytes to) const noexcept
    {
        return action(detail::read_spec{remote_, offset, to.data(), to.size()});
    }
    /* An object, which the owner and others may write: check what it says. */
    template <class T>
    auto read(std::uint64_t offset) const noexcept
    {
        return action(detail::read_value_spec<T>{remote_, offset});
    }
    auto write(std::uint64_t offset, const_bytes from) const noexcept
    {
        return action(detail::write_spec{remote_, offset, from.data(), from.size()});
    }
    /* Into and out of pieces. */
    template <std::size_t N>
    auto read(std::uint64_t offset, const piece_list<N> &to) const noexcept
    {
        return action(detail::rma_pieces_spec<piece_list<N>, weft_rma_readv>{remote_, offset, to});
    }
    template <std::size_t N>
    auto write(std::uint64_t offset, const piece_list<N> &from) const noexcept
    {
        return action(detail::rma_pieces_spec<piece_list<N>, weft_rma_writev>{remote_, offset, from});
    }
    auto readv(std::uint64_t offset, piece_span to) const noexcept
    {
        return action(detail::rma_pieces_spec<piece_span, weft_rma_readv>{remote_, offset, to});
    }
    auto writev(std::uint64_t offset, piece_span from) const noexcept
    {
        return action(detail::rma_pieces_spec<piece_span, weft_rma_writev>{remote_, offset, from});
    }
    /* Write, and then tell the owner's notify function, with a number. */
    auto write_notify(std::uint64_t offset, const_bytes from, std::uint64_t told) const noexcept
    {
        return action(detail::write_notify_spec{remote_, offset, from, told});
    }

    /* Atomics on a word: each gives the value before. */
    template <detail::word T>
    auto fetch_add(std::uint64_t offset, T by) const noexcept
    {
        return atomic<T>(WEFT_RMA_ADD, offset, by);
    }
    template <detail::word T>
    auto fetch_and(std::uint64_t offset, T with) const noexcept
    {
        return atomic<T>(WEFT_RMA_AND, offset, with);
    }
    template <detail::word T>
    auto fetch_or(std::uint64_t offset, T with) const noexcept
    {
        return atomic<T>(WEFT_RMA_OR, offset, with);
    }
    template <detail::word T>
    auto fetch_xor(std::uint64_t offset, T with) const noexcept
    {
        return atomic<T>(WEFT_RMA_XOR, offset, with);
    }
    template <detail::word T>
    auto swap(std::uint64_t offset, T value) const noexcept
    {
        return atomic<T>(WEFT_RMA_SWAP, offset, value);
    }
    /* Store `value` if it is `expected`. */
    template <detail::word T>
    auto compare_swap(std::uint64_t offset, T expected, T value) const noexcept
    {
        return atomic<T>(WEFT_RMA_CAS, offset, value, expected);
    }

    /* Ends when all that was posted on this remote before has ended. */
    auto flush() const noexcept { return action(detail::flush_spec{remote_}); }
    /* Nothing posted later takes effect before anything posted earlier. */
    result<void> try_fence() const noexcept { return weft_rma_fence(remote_); }
    void fence() const { try_fence().value(); }

protected:
    weft_remote_t *remote_;

private:
    template <class T>
    auto atomic(weft_rma_atomic_t which, std::uint64_t offset, T operand, T compare = T()) const noexcept
    {
        return action(detail::atomic_spec<T>{remote_, which, offset, operand, compare});
    }
};

/* One of ours: given back when it goes. */
class remote : public remote_ref {
public:
    remote() noexcept = default;
    /* Takes it over. */
    explicit remote(weft_remote_t *r) noexcept : remote_ref(r) {}
    remote(remote &&other) noexcept : remote_ref(other.release()) {}
    remote &operator=(remote &&other) noexcept
    {
        std::swap(remote_, other.remote_);
        return *this;
    }
    ~remote() { weft_remote_drop(remote_); }
    weft_remote_t *release() noexcept { return std::exchange(remote_, nullptr); }
};

/* Many reads and writes in one post, of one runtime; gives how many there were. If some fail it fails as the first of them did,
 * and the items say which. The items are borrowed. */
inline auto batch(std::span<weft_rma_item_t> items) noexcept { return action(detail::batch_spec{items}); }
inline weft_rma_item_t item_read(remote_ref from, std::uint64_t offset, bytes to) noexcept
{
    return {from.native(), WEFT_RMA_DO_READ, WEFT_OK, offset, to.data(), to.size()};
}
inline weft_rma_item_t item_write(remote_ref to, std::uint64_t offset, const_bytes from) noexcept
{
    return {to.native(), WEFT_RMA_DO_WRITE, WEFT_OK, offset, const_cast<void *>(from.data()), from.size()};
}

namespace detail {

struct attach_spec {
    using value_type = remote;
    weft_ep_t *ep;
    const_bytes key;
    const char *name;
    weft_rma_path_t path;
    weft_status_t post(weft_op_t *op) noexcept
    {
        weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
        o.path = path;
        return name ? weft_remote_find(ep, name, &o, op) : weft_remote_attach(ep, key.data(), key.size(), &o, op);
    }
    remote take(weft_op_t &op) noexcept { return remote(weft_op_remote(&op)); }
    void abandon(weft_op_t &op) noexcept { weft_remote_drop(weft_op_remote(&op)); }
};

} // namespace detail

/* Attach a key, or the region of a name, of the peer. Both are read in the post. */
inline auto endpoint_ref::attach(const_bytes key, weft_rma_path_t path) const noexcept
{
    return action(detail::attach_spec{ep_, key, nullptr, path});
}
inline auto endpoint_ref::find(const char *name, weft_rma_path_t path) const noexcept
{
    return action(detail::attach_spec{ep_, {}, name, path});
}

} // namespace weft

#endif
