/* weft/tensor.hpp - tensors in C++: typed views of weft_tensor_t, and DLPack in and out.
 *
 *     weft::tensor_view<float, 2> image(pixels, {480, 640});        over a span: compact, the last dimension fastest
 *     image(y, x) = 0;                                              image[y, x] where the language has it (C++23)
 *     weft::tensor_view<const float, 2> seen(value.tensors.at[0]);  over a tensor that came: its type and its extents are checked
 *     weft_tensor_t out = image.tensor();                           to be sent; it refers to `image`
 *
 *     DLManagedTensor *out = weft::to_dlpack<DLManagedTensor>(std::move(vector), view);   for others, who call its deleter
 *     weft::dlpack_tensor in(given);                                from others: calls the deleter once, when it goes
 *
 * A view owns nothing. Strides are in elements and may be 0 or negative. What a view is made of is checked once: every element
 * that its extents name is at an address that can be computed, and aligned. Indices are not checked, but by at().
 *
 * Of DLPack only the struct of version 0 is here, which has no stated version and no flags. weft::dlpack_managed has its layout;
 * with <dlpack/dlpack.h>, included before or after, its DLManagedTensor is taken and given just as well. */
#ifndef WEFT_TENSOR_HPP
#define WEFT_TENSOR_HPP

#include <algorithm>
#include <array>
#include <cassert>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <weft/error.hpp>
#include <weft/types.h>

namespace weft {

/* How an element is described: code and bits as in weft_tensor_t. To be specialised for types of a program's own (bfloat16). */
template <class T>
struct tensor_element;
template <class T>
    requires std::integral<T> && (!std::same_as<T, bool>)
struct tensor_element<T> {
    static constexpr std::uint8_t code = std::is_signed_v<T> ? 0 : 1, bits = 8 * sizeof(T);
};
template <>
struct tensor_element<std::byte> {
    static constexpr std::uint8_t code = 1, bits = 8;
};
template <class T>
    requires std::floating_point<T> && (sizeof(T) <= 8)
struct tensor_element<T> {
    static constexpr std::uint8_t code = 2, bits = 8 * sizeof(T);
};
template <class T>
struct tensor_element<std::complex<T>> {
    static constexpr std::uint8_t code = 5, bits = 8 * sizeof(std::complex<T>);
};
template <>
struct tensor_element<bool> {
    static constexpr std::uint8_t code = 6, bits = 8;
};

enum : std::int32_t { tensor_cpu = 1, tensor_cuda = 2, tensor_pinned = 3, tensor_managed = 13 }; /* DLPack's device types */

/* --- views ------------------------------------------------------------------------------------------------------------------ */

template <class T, std::size_t Rank>
class tensor_view {
    static_assert(Rank <= WEFT_TENSOR_DIMS);

public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    using index_type = std::int64_t;
    using extents_type = std::array<index_type, Rank>;
    using kind = tensor_element<value_type>;
    static constexpr std::size_t rank() noexcept { return Rank; }

    /* Nothing: every extent is 0. */
    tensor_view() noexcept { extents_.fill(0), strides_.fill(0); }
    /* Over the elements of a span, which may have more. Fails: WEFT_ERR_INVALID, they are fewer, an extent is negative. */
    tensor_view(std::span<T> data, const extents_type &extents) : tensor_view(try_over(data, extents).value()) {}
    /* Over a tensor. Fails: as try_from(). */
    explicit tensor_view(const weft_tensor_t &tensor) : tensor_view(try_from(tensor).value()) {}

    static result<tensor_view> try_over(std::span<T> data, const extents_type &extents) noexcept
    {
        tensor_view view;
        view.data_ = data.data();
        view.extents_ = extents;
        index_type n = 1;
        bool empty = std::find(extents.begin(), extents.end(), 0) != extents.end();
        for (std::size_t r = Rank; r-- > 0;) {
            view.strides_[r] = empty ? 1 : n;
            if (extents[r] < 0 || (!empty && __builtin_mul_overflow(n, extents[r], &n)))
                return weft_fail(WEFT_ERR_INVALID, "extent %zu is %lld", r, static_cast<long long>(extents[r]));
        }
        if (!empty && static_cast<std::uint64_t>(n) > data.size())
            return weft_fail(WEFT_ERR_INVALID, "the extents have %lld elements, the span %zu", static_cast<long long>(n),
                             data.size());
        return view;
    }
    /* Fails: WEFT_ERR_INVALID (another number of dimensions, another type of elements, extents or strides whose addresses
     * overflow, elements that are not aligned, no data), WEFT_ERR_UNSUPPORTED (memory of a GPU). */
    static result<tensor_view> try_from(const weft_tensor_t &tensor) noexcept
    {
        tensor_view view;
        if (weft_status_t st = view.read(tensor))
            return st;
        return view;
    }

    T *data_handle() const noexcept { return data_; }
    const extents_type &extents() const noexcept { return extents_; }
    const extents_type &strides() const noexcept { return strides_; }
    index_type extent(std::size_t r) const noexcept { return extents_[r]; }
    index_type stride(std::size_t r) const noexcept { return strides_[r]; }
    std::size_t size() const noexcept
    {
        std::size_t n = 1;
        for (index_type e : extents_)
            n *= static_cast<std::size_t>(e);
        return n;
    }
    bool empty() const noexcept { return std::find(extents_.begin(), extents_.end(), 0) != extents_.end(); }
    /* Are its elements one behind the other, the last dimension fastest? Then span() is them. */
    bool compact() const noexcept
    {
        index_type n = 1;
        for (std::size_t r = Rank; r-- > 0; n *= extents_[r])
            if (extents_[r] > 1 && strides_[r] != n)
                return empty();
        return true;
    }
    std::span<T> span() const noexcept
    {
        assert(compact());
        return {data_, size()};
    }

    template <std::integral... I>
        requires(sizeof...(I) == Rank)
    T &operator()(I... i) const noexcept
    {
        return at_index({static_cast<index_type>(i)...});
    }
#if defined(__cpp_multidimensional_subscript)
    template <std::integral... I>
        requires(sizeof...(I) == Rank)
    T &operator[](I... i) const noexcept
    {
        return at_index({static_cast<index_type>(i)...});
    }
#endif
    T &operator[](const extents_type &i) const noexcept { return at_index(i); }
    /* The same, checked. Fails: WEFT_ERR_RANGE. */
    template <std::integral... I>
        requires(sizeof...(I) == Rank)
    T &at(I... i) const
    {
        const extents_type index{static_cast<index_type>(i)...};
        for (std::size_t r = 0; r < Rank; r++)
            if (index[r] < 0 || index[r] >= extents_[r])
                detail::fail(WEFT_ERR_RANGE, "an index is outside of the tensor");
        return at_index(index);
    }

    /* As the C API has it. Its shape and strides are those in this view, which must stay. */
    weft_tensor_t tensor() const noexcept
    {
        weft_tensor_t t = WEFT_ZERO(weft_tensor_t);
        t.data = const_cast<value_type *>(data_);
        t.device_type = tensor_cpu;
        t.ndim = static_cast<std::int32_t>(Rank);
        t.code = kind::code;
        t.bits = kind::bits;
        t.lanes = 1;
        t.shape = const_cast<index_type *>(extents_.data());
        t.strides = compact() ? nullptr : const_cast<index_type *>(strides_.data());
        return t;
    }
    /* Of elements that cannot be written to. */
    operator tensor_view<const value_type, Rank>() const noexcept
        requires(!std::is_const_v<T>)
    {
        tensor_view<const value_type, Rank> view;
        view.data_ = data_;
        view.extents_ = extents_;
        view.strides_ = strides_;
        return view;
    }

private:
    template <class, std::size_t>
    friend class tensor_view;

    T &at_index(const extents_type &index) const noexcept
    {
        index_type at = 0;
        for (std::size_t r = 0; r < Rank; r++) {
            assert(index[r] >= 0 && index[r] < extents_[r]);
            at += index[r] * strides_[r];
        }
        return data_[at];
    }

    weft_status_t read(const weft_tensor_t &t) noexcept
    {
        std::uint64_t bytes;
        if (t.ndim != static_cast<std::int32_t>(Rank))
            return weft_fail(WEFT_ERR_INVALID, "the tensor has %d dimensions, not %zu", static_cast<int>(t.ndim), Rank);
        if (t.code != kind::code || t.bits != kind::bits || t.lanes != 1)
            return weft_fail(WEFT_ERR_INVALID, "the elements of the tensor are of type %u with %u bits, not %u with %u", t.code,
                             t.bits, kind::code, kind::bits);
        if (t.device_type != tensor_cpu && t.device_type != tensor_pinned && t.device_type != tensor_managed)
            return weft_fail(WEFT_ERR_UNSUPPORTED, "the tensor is in memory that the processor cannot touch");
        if (Rank && !t.shape)
            return weft_fail(WEFT_ERR_INVALID, "the tensor has no shape");
        if (weft_status_t st = weft_tensor_bytes(&t, &bytes))
            return st;
        index_type n = 1, low = 0, high = 0;
        std::copy_n(t.shape, Rank, extents_.begin());
        const bool none = empty();
        for (std::size_t r = Rank; r-- > 0;) { /* the furthest elements on both sides */
            strides_[r] = t.strides ? t.strides[r] : none ? 1 : n;
            index_type reach;
            if (none)
                continue;
            if (__builtin_mul_overflow(extents_[r] - 1, strides_[r], &reach) ||
                __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high))
                return weft_fail(WEFT_ERR_INVALID, "the strides of the tensor are too large");
            n *= extents_[r]; /* weft_tensor_bytes() has looked */
        }
        const auto begin = reinterpret_cast<std::uintptr_t>(t.data);
        std::uintptr_t first;
        if (__builtin_add_overflow(begin, t.byte_offset, &first))
            return weft_fail(WEFT_ERR_INVALID, "the offset of the tensor is too large");
        constexpr auto most = static_cast<index_type>(INT64_MAX / sizeof(T));
        std::uintptr_t end;
        if (low < -most || high >= most || (low < 0 && static_cast<std::uintptr_t>(-low) * sizeof(T) > first) ||
            __builtin_add_overflow(first, (static_cast<std::uintptr_t>(high) + 1) * sizeof(T), &end))
            return weft_fail(WEFT_ERR_INVALID, "the strides of the tensor are too large");
        if (!none && !t.data)
            return weft_fail(WEFT_ERR_INVALID, "the tensor has no data");
        if (first % alignof(T))
            return weft_fail(WEFT_ERR_INVALID, "the elements of the tensor are not aligned");
        data_ = none && !t.data ? nullptr : reinterpret_cast<T *>(static_cast<std::byte *>(t.data) + t.byte_offset);
        return WEFT_OK;
    }

    T *data_ = nullptr;
    extents_type extents_, strides_;
};

/* --- DLPack ----------------------------------------------------------------------------------------------------------------- */

/* The layout of DLManagedTensor. */
struct dlpack_managed {
    weft_tensor_t dl_tensor;
    void *manager_ctx;
    void (*deleter)(dlpack_managed *self);
};

/* dlpack_managed, or DLManagedTensor. */
template <class M>
concept dlpack_struct = std::is_standard_layout_v<M> && sizeof(M) == sizeof(dlpack_managed) && requires(M m) {
    { m.manager_ctx } -> std::same_as<void *&>;
    { m.deleter } -> std::same_as<void (*&)(M *)>;
    requires sizeof m.dl_tensor == sizeof(weft_tensor_t) && std::is_trivially_copyable_v<decltype(m.dl_tensor)>;
};

/* A tensor of somebody else's. Calls the deleter when it goes, once; one without a deleter needs none. The tensor that it has was
 * not looked at: a view checks it. */
class dlpack_tensor {
public:
    dlpack_tensor() noexcept = default;
    /* Takes it over; nullptr is none. */
    template <dlpack_struct M>
    explicit dlpack_tensor(M *managed) noexcept : managed_(managed), deleter_(managed ? call<M> : nullptr)
    {
        if (managed)
            std::memcpy(&tensor_, &managed->dl_tensor, sizeof tensor_);
    }
    dlpack_tensor(dlpack_tensor &&other) noexcept
        : managed_(std::exchange(other.managed_, nullptr)), deleter_(other.deleter_), tensor_(other.tensor_)
    {
    }
    dlpack_tensor &operator=(dlpack_tensor &&other) noexcept
    {
        std::swap(managed_, other.managed_);
        std::swap(deleter_, other.deleter_);
        std::swap(tensor_, other.tensor_);
        return *this;
    }
    ~dlpack_tensor() { reset(); }

    explicit operator bool() const noexcept { return managed_; }
    const weft_tensor_t &tensor() const noexcept { return tensor_; }
    template <class T, std::size_t Rank>
    result<tensor_view<T, Rank>> try_view() const noexcept
    {
        return managed_ ? tensor_view<T, Rank>::try_from(tensor_) : weft_fail(WEFT_ERR_INVALID, "there is no tensor");
    }
    template <class T, std::size_t Rank>
    tensor_view<T, Rank> view() const
    {
        return try_view<T, Rank>().value();
    }
    void reset() noexcept
    {
        if (void *managed = std::exchange(managed_, nullptr))
            deleter_(managed);
    }

private:
    template <class M>
    static void call(void *managed) noexcept
    {
        if (auto *m = static_cast<M *>(managed); m->deleter)
            m->deleter(m);
    }

    void *managed_ = nullptr;
    void (*deleter_)(void *) noexcept = nullptr;
    weft_tensor_t tensor_ = WEFT_ZERO(weft_tensor_t);
};

/* Hand a tensor to others: what `view` shows, in memory that `owner` (a vector that is moved, a pointer that counts) keeps.
 * Whoever gets it calls its deleter once, on any thread, which destroys the owner; that must not throw. Only of elements that can
 * be written to: this struct has no word for others. Fails: WEFT_ERR_NOMEM, and then the owner is destroyed. */
template <dlpack_struct M = dlpack_managed, class Owner, class T, std::size_t Rank>
    requires(!std::is_const_v<T> && std::is_nothrow_constructible_v<std::decay_t<Owner>, Owner>)
result<M *> try_to_dlpack(Owner &&owner, const tensor_view<T, Rank> &view) noexcept
{
    struct holder {
        M managed{};
        std::decay_t<Owner> owner;
        std::array<std::int64_t, Rank> shape, strides;
        explicit holder(Owner &&o) noexcept : owner(std::forward<Owner>(o)) {}
        static void destroy(M *self) noexcept { delete static_cast<holder *>(self->manager_ctx); }
    };
    weft_tensor_t t = view.tensor();
    auto *held = new (std::nothrow) holder(std::forward<Owner>(owner));
    if (!held)
        return weft_fail(WEFT_ERR_NOMEM, "no memory for a tensor of DLPack");
    held->shape = view.extents();
    held->strides = view.strides();
    t.shape = held->shape.data();
    t.strides = held->strides.data(); /* some who take it do without NULL */
    std::memcpy(&held->managed.dl_tensor, &t, sizeof t);
    held->managed.manager_ctx = held;
    held->managed.deleter = holder::destroy;
    return &held->managed;
}
template <dlpack_struct M = dlpack_managed, class Owner, class T, std::size_t Rank>
M *to_dlpack(Owner &&owner, const tensor_view<T, Rank> &view)
{
    return try_to_dlpack<M>(std::forward<Owner>(owner), view).value();
}

} // namespace weft

#endif
