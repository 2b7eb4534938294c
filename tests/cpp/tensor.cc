/* tests/cpp/tensor.cc - views of tensors: extents, strides, types, what overflows; DLPack in and out. */
#include "test.h"
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <vector>
#include <weft/tensor.hpp>

/* what <dlpack/dlpack.h> has, as a program sees it that includes both */
extern "C" {
typedef struct {
    int32_t device_type, device_id;
} DLDevice;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
}
static_assert(weft::dlpack_struct<DLManagedTensor> && weft::dlpack_struct<weft::dlpack_managed>);
static_assert(offsetof(weft::dlpack_managed, deleter) == offsetof(DLManagedTensor, deleter));

namespace
{

template <class T> weft_tensor_t described(T *data, std::vector<int64_t> &shape, std::vector<int64_t> *strides = nullptr)
{
    weft_tensor_t t = WEFT_ZERO(weft_tensor_t);
    t.data = data;
    t.device_type = weft::tensor_cpu;
    t.ndim = static_cast<int32_t>(shape.size());
    t.code = weft::tensor_element<T>::code;
    t.bits = weft::tensor_element<T>::bits;
    t.lanes = 1;
    t.shape = shape.data();
    t.strides = strides ? strides->data() : nullptr;
    return t;
}

std::vector<int> counted(int n)
{
    std::vector<int> v(static_cast<std::size_t>(n));
    std::iota(v.begin(), v.end(), 0);
    return v;
}

template <class T, std::size_t R> void refused(const weft_tensor_t &t, weft_status_t why = WEFT_ERR_INVALID)
{
    weft::result<weft::tensor_view<T, R>> view = weft::tensor_view<T, R>::try_from(t);
    CHECK_EQ(view.status(), why);
    CHECK(*weft_last_error());
}

} // namespace

TEST(a_view_of_a_span_is_compact)
{
    std::vector<int> data = counted(24);
    weft::tensor_view<int, 3> view(data, {2, 3, 4});
    CHECK_EQ(view.size(), 24u);
    CHECK(view.compact() && view.strides() == (std::array<int64_t, 3>{12, 4, 1}));
    CHECK_EQ(view(1, 2, 3), 23);
    CHECK_EQ(view(0, 1, 2), 6);
    CHECK_EQ(view.at(1, 0, 0), 12);
    view(1, 2, 3) = -5;
    CHECK_EQ(data[23], -5);
    CHECK(view.span().data() == data.data());
    weft::tensor_view<const int, 3> fixed = view;
    CHECK_EQ((fixed[{1, 2, 3}]), -5);
    weft_tensor_t t = fixed.tensor();
    CHECK(weft_tensor_compact(&t) && !t.strides && t.ndim == 3);
    uint64_t bytes;
    CHECK_OK(weft_tensor_bytes(&t, &bytes));
    CHECK_EQ(bytes, 24 * sizeof(int));
    try {
        (void)view.at(1, 3, 0);
        FAIL("nothing was thrown");
    } catch (const weft::error &e) {
        CHECK_EQ(e.status(), WEFT_ERR_RANGE);
    }
    using view_t = weft::tensor_view<int, 3>;
    CHECK_EQ(view_t::try_over(data, {2, 3, 5}).status(), WEFT_ERR_INVALID);
    CHECK_EQ(view_t::try_over(data, {2, -3, 4}).status(), WEFT_ERR_INVALID);
    CHECK_EQ(view_t::try_over(data, {INT64_MAX, 2, 2}).status(), WEFT_ERR_INVALID);
    CHECK_EQ(view_t::try_over(data, {INT64_C(1) << 32, INT64_C(1) << 32, 1}).status(), WEFT_ERR_INVALID);
    CHECK(view_t::try_over(data, {2, 3, 3}).has_value());
}

TEST(a_tensor_of_no_dimension_is_one_element)
{
    double x = 2.5;
    weft::tensor_view<double, 0> one(std::span<double>(&x, 1), {});
    CHECK(one() == 2.5);
    CHECK_EQ(one.size(), 1u);
    weft_tensor_t t = one.tensor();
    weft::tensor_view<double, 0> again(t);
    CHECK(&again() == &x);
}

TEST(strides_go_anywhere_and_offsets_count)
{
    std::vector<int> data = counted(12);
    std::vector<int64_t> shape{3, 4}, turned{1, 4}, back{-4, -1}, still{0, 1};
    weft_tensor_t t = described(data.data(), shape, &turned);
    shape = {4, 3};
    weft::tensor_view<int, 2> across(t);
    CHECK_EQ(across(3, 2), 11);
    CHECK_EQ(across(1, 2), 9);
    CHECK(!across.compact());
    weft_tensor_t out = across.tensor();
    CHECK(out.strides && !weft_tensor_compact(&out));
    CHECK_EQ((weft::tensor_view<int, 2>(out)(1, 2)), 9);
    shape = {3, 4};
    t = described(data.data(), shape, &back);
    t.byte_offset = 11 * sizeof(int);
    weft::tensor_view<int, 2> reversed(t);
    CHECK_EQ(reversed(0, 0), 11);
    CHECK_EQ(reversed(2, 3), 0);
    t = described(data.data(), shape, &still);
    weft::tensor_view<const int, 2> repeated(t);
    CHECK_EQ(repeated(2, 3), 3);
    t.byte_offset = 2;
    refused<int, 2>(t); /* not aligned */
}

TEST(an_extent_of_zero_has_no_elements)
{
    std::vector<int64_t> shape{4, 0, 3}, wild{INT64_MAX, INT64_MIN, INT64_MAX};
    weft_tensor_t t = described<float>(nullptr, shape);
    weft::tensor_view<float, 3> view(t);
    CHECK(view.empty() && !view.size() && view.compact() && view.span().empty());
    t = described<float>(nullptr, shape, &wild); /* nobody follows these */
    CHECK((weft::tensor_view<float, 3>(t).empty()));
    weft::tensor_view<float, 2> over(std::span<float>(), {INT64_MAX, 0});
    CHECK(over.empty());
    weft::tensor_view<float, 2> none;
    CHECK(none.empty());
    t = none.tensor();
    CHECK((weft::tensor_view<float, 2>(t).empty()));
}

TEST(what_does_not_fit_is_refused)
{
    std::vector<int> data = counted(12);
    std::vector<int64_t> shape{3, 4};
    weft_tensor_t t = described(data.data(), shape);
    CHECK((weft::tensor_view<const int, 2>::try_from(t).has_value()));
    refused<int, 3>(t);
    refused<unsigned, 2>(t);
    refused<short, 2>(t);
    refused<float, 2>(t);
    weft_tensor_t bad = t;
    bad.lanes = 2;
    refused<int, 2>(bad);
    bad = t;
    bad.device_type = weft::tensor_cuda;
    refused<int, 2>(bad, WEFT_ERR_UNSUPPORTED);
    bad = t;
    bad.data = nullptr;
    refused<int, 2>(bad);
    bad = t;
    bad.shape = nullptr;
    refused<int, 2>(bad);
    bad = t;
    bad.ndim = -1;
    refused<int, 2>(bad);
    bad = t;
    bad.byte_offset = UINT64_MAX - 3;
    refused<int, 2>(bad);
    for (std::vector<int64_t> strides : {std::vector<int64_t>{INT64_MAX, 1},
                                         {INT64_MIN, 1},
                                         {INT64_MAX / 4, INT64_MAX / 4},
                                         {INT64_MIN / 8, 1},
                                         {INT64_MAX / 4, 0}}) {
        bad = t;
        bad.strides = strides.data();
        refused<int, 2>(bad);
    }
    for (std::vector<int64_t> wrong : {std::vector<int64_t>{-1, 4}, {INT64_MAX, 4}, {INT64_C(1) << 40, INT64_C(1) << 40}}) {
        bad = t;
        bad.shape = wrong.data();
        refused<int, 2>(bad);
    }
}

TEST(types_have_the_codes_of_dlpack)
{
    CHECK(weft::tensor_element<std::int8_t>::code == 0 && weft::tensor_element<std::int8_t>::bits == 8);
    CHECK(weft::tensor_element<std::uint64_t>::code == 1 && weft::tensor_element<std::uint64_t>::bits == 64);
    CHECK(weft::tensor_element<float>::code == 2 && weft::tensor_element<float>::bits == 32);
    CHECK(weft::tensor_element<std::complex<float>>::code == 5 && weft::tensor_element<std::complex<float>>::bits == 64);
    CHECK(weft::tensor_element<bool>::code == 6 && weft::tensor_element<bool>::bits == 8);
    std::vector<std::complex<float>> z(4, {1, 2});
    weft::tensor_view<std::complex<float>, 2> view(z, {2, 2});
    weft_tensor_t t = view.tensor();
    CHECK((weft::tensor_view<std::complex<float>, 2>(t)(1, 1)) == std::complex<float>(1, 2));
}

/* --- DLPack ----------------------------------------------------------------------------------------------------------------- */

namespace
{

struct owner {
    inline static int alive = 0;
    std::vector<int> data;
    explicit owner(std::vector<int> d) : data(std::move(d))
    {
        alive++;
    }
    owner(owner &&other) noexcept : data(std::move(other.data))
    {
        alive++;
    }
    ~owner()
    {
        alive--;
    }
};

template <class M> void there_and_back()
{
    owner::alive = 0;
    {
        owner mine(counted(6));
        weft::tensor_view<int, 2> view(mine.data, {2, 3});
        const int *at = mine.data.data();
        M *out = weft::to_dlpack<M>(std::move(mine), view);
        CHECK_EQ(owner::alive, 2);
        CHECK(out->dl_tensor.ndim == 2 && out->dl_tensor.shape[1] == 3 && out->dl_tensor.strides[0] == 3);
        weft::dlpack_tensor in(out);
        weft::tensor_view<int, 2> seen = in.view<int, 2>();
        CHECK(seen.data_handle() == at && seen(1, 2) == 5);
        weft::dlpack_tensor moved = std::move(in), empty;
        CHECK(moved && !in && !empty);
        CHECK_EQ((in.try_view<int, 2>().status()), WEFT_ERR_INVALID);
        CHECK_EQ((moved.try_view<float, 2>().status()), WEFT_ERR_INVALID);
        empty = std::move(moved);
        CHECK_EQ((empty.view<int, 2>()(0, 1)), 1);
        CHECK_EQ(owner::alive, 2);
        empty.reset();
        CHECK_EQ(owner::alive, 1);
        empty.reset();
        CHECK_EQ(owner::alive, 1);
    }
    CHECK_EQ(owner::alive, 0);
}

int deleted;

} // namespace

TEST(a_tensor_goes_out_and_comes_in)
{
    there_and_back<weft::dlpack_managed>();
    there_and_back<DLManagedTensor>();
}

TEST(a_deleter_is_called_once)
{
    int64_t shape[] = {2, 2};
    float data[] = {1, 2, 3, 4};
    DLManagedTensor given{};
    given.dl_tensor.data = data;
    given.dl_tensor.device = {1, 0};
    given.dl_tensor.ndim = 2;
    given.dl_tensor.dtype = {2, 32, 1};
    given.dl_tensor.shape = shape;
    given.manager_ctx = &given;
    given.deleter = [](DLManagedTensor *self) {
        CHECK(self->manager_ctx == self);
        deleted++;
    };
    {
        weft::dlpack_tensor in(&given), other;
        CHECK((in.view<float, 2>()(1, 0)) == 3);
        other = std::move(in);
        weft::dlpack_tensor third(std::move(other));
        CHECK_EQ(deleted, 0);
    }
    CHECK_EQ(deleted, 1);
    given.deleter = nullptr;
    {
        weft::dlpack_tensor in(&given);
    }
    {
        weft::dlpack_tensor in(static_cast<DLManagedTensor *>(nullptr));
    }
    CHECK_EQ(deleted, 1);
}

TEST(an_owner_may_be_shared)
{
    auto data = std::make_shared<std::vector<double>>(10, 1.5);
    weft::tensor_view<double, 1> view(*data, {10});
    DLManagedTensor *out = weft::to_dlpack<DLManagedTensor>(data, view);
    CHECK_EQ(data.use_count(), 2);
    out->deleter(out);
    CHECK_EQ(data.use_count(), 1);
}
