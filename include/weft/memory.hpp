/* weft/memory.hpp - memory in C++: pools, kinds of memory as std::pmr::memory_resource, and a memory_resource as a kind.
 *
 *     weft::pool pool(rt, {.max_bytes = 64 << 20});
 *     weft::pool_resource from_pool(pool);
 *     std::pmr::vector<float> values(1 << 20, &from_pool);         peers on this host map it: sent without a copy
 *     co_await ep.send(values, 7);
 *
 *     weft::kind_resource huge(weft_mem_kind_find("huge"));        containers in huge or page-locked pages
 *     weft::resource_kind mine("arena", &some_resource);           weft calls a program's own allocator: mine.native()
 *
 * Memory is aligned to 64 as it comes. What needs more is served where the processor can touch the memory.
 *
 * Who has to stay: a resource refers to its pool or kind, and a kind to its resource; each must stay until the last byte of it
 * was given back. A container must not be destroyed or grown while an operation uses its elements.
 *
 * Failures: what is thrown is std::bad_alloc, by resources, and weft::error, by what makes a pool; weft_last_error() has the
 * sentence. Without exceptions a resource that has no memory ends the process, as the standard has no other way to say it, and a
 * pool is made by weft::pool::try_open(). */
#ifndef WEFT_MEMORY_HPP
#define WEFT_MEMORY_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string_view>
#include <utility>
#include <weft/error.hpp>
#include <weft/mem.h>

namespace weft {
namespace detail {

template <class R>
concept has_runtime = requires(R &rt) {
    { rt.native() } -> std::convertible_to<weft_runtime_t *>;
};

[[noreturn]] inline void no_memory()
{
#if WEFT_EXCEPTIONS
    throw std::bad_alloc();
#else
    fail(WEFT_ERR_NOMEM, "a memory_resource has no memory");
#endif
}

} // namespace detail

/* --- pools ------------------------------------------------------------------------------------------------------------------ */

/* As weft_pool_opts_t: what is zero is the default. */
struct pool_options {
    const weft_mem_kind_t *kind = nullptr;
    std::size_t max_bytes = 0;
    std::size_t arena_bytes = 0;
    bool unshared = false;
    bool outlives = false;
};

/* Frees its pool when it goes, which must be before its runtime is closed (or set `outlives`). If buffers are still out then, the
 * pool stays until the process ends: close() says so. Any thread, but for moving it. */
class pool {
public:
    pool() noexcept = default;
    /* Takes over a pool. */
    explicit pool(weft_pool_t *p) noexcept : pool_(p) {}
    /* Fails: as weft_pool_new(). */
    explicit pool(weft_runtime_t *rt, const pool_options &options = {}) : pool(std::move(try_open(rt, options)).value()) {}
    template <detail::has_runtime R>
    explicit pool(R &rt, const pool_options &options = {}) : pool(static_cast<weft_runtime_t *>(rt.native()), options)
    {
    }
    pool(pool &&other) noexcept : pool_(other.release()) {}
    pool &operator=(pool &&other) noexcept
    {
        std::swap(pool_, other.pool_);
        return *this;
    }
    ~pool() { (void)weft_pool_free(pool_); }

    static result<pool> try_open(weft_runtime_t *rt, const pool_options &options = {}) noexcept
    {
        weft_pool_opts_t opts = WEFT_POOL_OPTS_INIT;
        opts.kind = options.kind;
        opts.max_bytes = options.max_bytes;
        opts.arena_bytes = options.arena_bytes;
        opts.unshared = options.unshared;
        opts.outlives = options.outlives;
        weft_pool_t *p = nullptr;
        if (weft_status_t st = weft_pool_new(rt, &opts, &p))
            return st;
        return pool(p);
    }
    template <detail::has_runtime R>
    static result<pool> try_open(R &rt, const pool_options &options = {}) noexcept
    {
        return try_open(static_cast<weft_runtime_t *>(rt.native()), options);
    }

    /* Free it now. WEFT_ERR_STATE: buffers are out, and nothing was done. */
    result<void> close() noexcept
    {
        weft_status_t st = weft_pool_free(pool_);
        if (st != WEFT_ERR_STATE)
            pool_ = nullptr;
        return st;
    }
    /* Give arenas that are empty back to the system; how many bytes that were. */
    std::size_t trim() noexcept { return weft_pool_trim(pool_); }
    weft_pool_stats_t stats() const noexcept
    {
        weft_pool_stats_t stats = WEFT_POOL_STATS_INIT;
        weft_pool_get_stats(pool_, &stats);
        return stats;
    }
    /* The pool as a kind, valid until it is freed. */
    const weft_mem_kind_t *kind() const noexcept { return weft_pool_kind(pool_); }

    weft_pool_t *native() const noexcept { return pool_; }
    weft_pool_t *release() noexcept { return std::exchange(pool_, nullptr); }
    explicit operator bool() const noexcept { return pool_; }

private:
    weft_pool_t *pool_ = nullptr;
};

/* --- resources -------------------------------------------------------------------------------------------------------------- */

namespace detail {

/* A kind as a resource: a pool is one, too. Equal are those of the same kind (without RTTI: those that are the same object). */
class memory_resource : public std::pmr::memory_resource {
public:
    const weft_mem_kind_t *kind() const noexcept { return kind_; }

protected:
    explicit memory_resource(const weft_mem_kind_t *kind) noexcept : kind_(kind) {}

private:
    static constexpr std::size_t natural = 64;

    void *do_allocate(std::size_t n, std::size_t align) override
    {
        void *p = nullptr;
        if (align > natural)
            return allocate_aligned(n, align);
        if (!kind_ || weft_mem_alloc(kind_, n, &p))
            no_memory();
        return p;
    }
    void do_deallocate(void *p, std::size_t n, std::size_t align) noexcept override
    {
        if (align > natural) {
            n += align;
            p = static_cast<void **>(p)[-1];
        }
        weft_mem_free(kind_, p, n);
    }
    /* Where the memory begins is kept before what is given out. */
    void *allocate_aligned(std::size_t n, std::size_t align)
    {
        void *begin = nullptr;
        if (!kind_ || !(kind_->flags & WEFT_MEM_CPU) || n > SIZE_MAX - align || weft_mem_alloc(kind_, n + align, &begin))
            no_memory();
        const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(begin) + natural;
        std::byte *p = static_cast<std::byte *>(begin) + natural + (align - past % align) % align;
        reinterpret_cast<void **>(p)[-1] = begin;
        return p;
    }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {
#if defined(__cpp_rtti)
        const auto *same = dynamic_cast<const memory_resource *>(&other);
        return same && same->kind_ == kind_;
#else
        return this == &other;
#endif
    }

    const weft_mem_kind_t *kind_;
};

} // namespace detail

/* Memory of a pool. Exhausted (max_bytes): std::bad_alloc. */
class pool_resource final : public detail::memory_resource {
public:
    explicit pool_resource(const pool &p) noexcept : memory_resource(p.kind()) {}
    explicit pool_resource(weft_pool_t *p) noexcept : memory_resource(weft_pool_kind(p)) {}
};

/* Memory of a kind; nullptr, what weft_mem_kind_find() gives where there is none, has no memory. Of a kind that the processor
 * cannot touch (without WEFT_MEM_CPU) memory can be had, and not a container be filled. */
class kind_resource final : public detail::memory_resource {
public:
    explicit kind_resource(const weft_mem_kind_t *kind) noexcept : memory_resource(kind) {}
};

/* --- a kind of the program's own -------------------------------------------------------------------------------------------- */

/* A memory_resource as a kind: wherever a kind is taken (pools, receives into memory that the library makes). native() is valid
 * while this object is, which cannot be moved. With add() it is also found by name.
 *
 * `upstream` must stay as long, and is called by any thread, also in progress, by several at a time: a
 * std::pmr::synchronized_pool_resource will do, a monotonic_buffer_resource will not. What it throws becomes WEFT_ERR_NOMEM
 * (std::bad_alloc) or WEFT_ERR_SYSTEM; what it throws while memory is given back ends the process. */
class resource_kind {
public:
    /* A name has letters, digits, '-' and '_', at most 31: what is more is cut off. */
    resource_kind(std::string_view name, std::pmr::memory_resource *upstream) noexcept : upstream_(upstream)
    {
        name.copy(name_, sizeof name_ - 1);
        kind_.name = name_;
        kind_.flags = WEFT_MEM_CPU;
        kind_.user = this;
        kind_.alloc = allocate;
        kind_.free = give_back;
    }
    resource_kind(const resource_kind &) = delete;
    resource_kind &operator=(const resource_kind &) = delete;
    /* Nothing may be under way in memory of it, and no pool be made of it. */
    ~resource_kind() { remove(); }

    const weft_mem_kind_t *native() const noexcept { return &kind_; }

    /* Make weft_mem_kind_find() find it. Fails: as weft_mem_kind_add(). */
    result<void> try_add() noexcept
    {
        weft_status_t st = weft_mem_kind_add(&kind_);
        added_ = added_ || !st;
        return st;
    }
    void add() { try_add().value(); }
    void remove() noexcept
    {
        if (std::exchange(added_, false))
            (void)weft_mem_kind_remove(&kind_);
    }

private:
    static weft_status_t allocate(const weft_mem_kind_t *kind, std::size_t n, void **ptr_out) noexcept
    {
        auto *self = static_cast<resource_kind *>(kind->user);
#if WEFT_EXCEPTIONS
        try {
            *ptr_out = self->upstream_->allocate(n, 64);
        } catch (const std::bad_alloc &) {
            return WEFT_ERR_NOMEM; /* the library says the name of the kind and how many bytes */
        } catch (...) {
            return WEFT_ERR_SYSTEM;
        }
#else
        *ptr_out = self->upstream_->allocate(n, 64);
#endif
        return WEFT_OK;
    }
    static void give_back(const weft_mem_kind_t *kind, void *ptr, std::size_t n) noexcept
    {
        static_cast<resource_kind *>(kind->user)->upstream_->deallocate(ptr, n, 64);
    }

    weft_mem_kind_t kind_ = WEFT_MEM_KIND_INIT;
    std::pmr::memory_resource *upstream_;
    char name_[32] = {};
    bool added_ = false;
};

} // namespace weft

#endif
