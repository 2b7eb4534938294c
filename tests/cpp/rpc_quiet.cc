/* tests/cpp/rpc_quiet.cc - a small call in C++ allocates nothing, as in C; and what happens where there is no memory. Allocations
 * are counted by standing in front of malloc.
 *
 * ctest: no-asan no-tsan: they stand there themselves */
#include "desk.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
static std::atomic<unsigned long> allocations{0};
extern "C" {
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n)
{
    allocations++;
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    allocations++;
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    allocations++;
    return __libc_realloc(p, n);
}
}
#endif

static bool no_memory; /* for new */
__attribute__((noinline)) void *operator new(std::size_t n)
{
    void *p = no_memory ? nullptr : malloc(n);
    if (!p)
        throw std::bad_alloc();
    return p;
}
__attribute__((noinline)) void operator delete(void *p) noexcept
{
    free(p);
}
__attribute__((noinline)) void operator delete(void *p, std::size_t) noexcept
{
    free(p);
}

namespace
{

struct api {
    static constexpr weft::function<int(int, int)> add{"add"};
    static constexpr weft::function<std::string_view(std::string_view)> same{"same"};
    static constexpr weft::function<double(std::span<const double>)> mean{"mean"};
    static constexpr weft::function<int(int)> task{"task"};
};

enum { CALLS = 500 };
unsigned long counted()
{
#if SANITIZED
    return 0;
#else
    return allocations;
#endif
}

/* How many allocations CALLS calls make, once what is kept for reuse is there. */
template <class Make> weft::task<> count(Make make, unsigned long &made)
{
    for (int turn = 0; turn < 2; turn++) {
        const unsigned long before = counted();
        for (int i = 0; i < CALLS; i++)
            (void)co_await make();
        made = counted() - before;
    }
}

} // namespace

TEST(a_small_call_allocates_nothing_on_either_side)
{
    if (SANITIZED)
        SKIP("the sanitizer has its own malloc");
    desk d;
    d.calc.add(api::add, [](int a, int b) { return a + b; });
    d.calc.add(api::same, [](std::string_view text) { return text; });
    d.calc.add(api::mean, [](std::span<const double> v) { return v[0]; });
    d.calc.add("fails", [](int) -> weft::call_result<int> { return weft::code::not_found; });
    const std::string text = "sixteen letters and more";
    const double values[] = {1, 2, 3};
    unsigned long made = 1;
    auto quiet = [&](const char *what, auto make) {
        d.run(count(make, made));
        printf("# %lu allocations in %d calls: %s\n", made, CALLS, what);
        CHECK_EQ(made, 0);
    };
    quiet("declared", [&] { return d.client.call(api::add, 1, 2); });
    quiet("by name", [&] { return d.client.call<int>("add", 1, 2); });
    quiet("as a result", [&] { return d.client.call(api::add, 1, 2).as_result(); });
    quiet("a view in the reply", [&] { return d.client.call(api::same, text); });
    quiet("text that is short", [&] { return d.client.call<std::string>(api::same, "short"); });
    quiet("a vector", [&] { return d.client.call(api::mean, values); });
}

TEST(a_coroutine_that_answers_allocates_its_frames_and_what_stops_it)
{
    if (SANITIZED)
        SKIP("the sanitizer has its own malloc");
    desk d;
    d.calc.add(api::task, [](int x) -> weft::task<int> { co_return x; });
    unsigned long made = 0;
    d.run(count([&] { return d.client.call(api::task, 1); }, made));
    printf("# %lu allocations in %d calls\n", made, CALLS);
    CHECK(made <= 4 * CALLS);
}

TEST(without_memory_for_its_result_a_call_fails_and_says_so)
{
    desk d;
    d.calc.add("many", [](std::size_t n) { return std::vector<int>(n, 1); });
    auto call = d.client.call<std::vector<int>>("many", 1000u + 0ul);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(call.post(&op));
    d.until([&] { return weft_op_done(&op); });
    CHECK_OK(op.status);
    no_memory = true;
    weft_status_t st = weft::detail::ended(call.spec(), op);
    auto why = call.spec().failed(st, "no memory");
    no_memory = false;
    CHECK_EQ(st, WEFT_ERR_NOMEM);
    CHECK(why.code() == weft::code::resource_exhausted && why.failure().ran == WEFT_RAN);
}

TEST(without_memory_a_handler_answers_so)
{
    desk d;
    d.calc.add(api::task, [](int x) -> weft::task<int> { co_return x; });
    d.calc.add("makes", [](int x) { return std::vector<int>(static_cast<std::size_t>(x)); });
    CHECK_EQ(d.get(d.client.call(api::task, 1)), 1);
    auto task = d.client.call(api::task, 2);
    auto makes = d.client.method<std::vector<int>(int)>("makes")(2000);
    weft_op_t op[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    no_memory = true;
    CHECK_OK(task.post(&op[0]));
    CHECK_OK(makes.post(&op[1]));
    d.until([&] { return weft_op_done(&op[0]) && weft_op_done(&op[1]); });
    no_memory = false;
    CHECK(task.spec().failed(op[0].status, "").code() == weft::code::resource_exhausted);
    CHECK(makes.spec().failed(op[1].status, "").code() == weft::code::internal); /* std::bad_alloc, as any exception */
    CHECK_EQ(d.get(d.client.call(api::task, 3)), 3);
}
