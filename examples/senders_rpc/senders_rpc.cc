/* examples/senders_rpc/senders_rpc.cc - the call with discovery of execution-ucx, as senders: a server publishes add(), a client
 * finds it in the registry, checks its signature and calls it.
 *
 * It needs an implementation of senders: std::execution, or stdexec with -DSTDEXEC=DIR (CMakeLists.txt). The same in C, with two
 * servers, is examples/rpc_discovery. A call of the C API becomes a sender by a few lines: post() and take(), below. */
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <weft/execution.hpp>
#include <weft/registry.h>
#include <weft/rpc.h>
#include <weft/service.h>
#include <weft/weft.hpp>

namespace ex = weft::execution::impl; /* stdexec, or std::execution */
using weft::execution::sender;

namespace
{

constexpr const char *ADD = "add(a: i32, b: i32) -> i32";

/* --- calls of C, as actions --------------------------------------------------------------------------------------------- */

/* Who offers a service: their number, and the first one's signatures. */
struct find_spec {
    using value_type = std::uint64_t;
    weft_registry_t *registry;
    const char *service;
    std::string *signatures;

    weft_status_t post(weft_op_t *op) noexcept
    {
        return weft_registry_find(
            registry, service,
            [](const weft_entry_t *entry, void *user) {
                auto *text = static_cast<std::string *>(user);
                if (text->empty())
                    text->assign(static_cast<const char *>(entry->data), entry->data_len);
            },
            signatures, op);
    }
    std::uint64_t take(weft_op_t &op) noexcept
    {
        return op.len;
    }
};

/* A call of two numbers that gives one. The arguments and the reply stay in the operation state until it has ended. */
struct call_spec {
    using value_type = std::int32_t;
    weft_method_t *method;
    weft_value_t args[2];
    weft_reply_t reply = WEFT_REPLY_INIT;

    weft_status_t post(weft_op_t *op) noexcept
    {
        return weft_call(method, args, 2, &reply, op);
    }
    std::int32_t take(weft_op_t &) noexcept
    {
        return reply.values[0].i32;
    }
    call_spec(weft_method_t *m, std::int32_t a, std::int32_t b) noexcept : method(m), args{weft_i32(a), weft_i32(b)}
    {
    }
    call_spec(call_spec &&other) noexcept = default; /* before it is posted */
    ~call_spec()
    {
        weft_reply_release(&reply);
    }
};

/* What ends an object, with its operation. */
template <class T, weft_status_t (*End)(T *, weft_op_t *)> struct end_spec {
    using value_type = void;
    T *what;
    weft_status_t post(weft_op_t *op) noexcept
    {
        return End(what, op);
    }
    void take(weft_op_t &) noexcept
    {
    }
};

/* --- the server --------------------------------------------------------------------------------------------------------- */

int add(int a, int b)
{
    return a + b;
}

weft_service_t *serve(weft::runtime &rt)
{
    weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
    weft_function_opts_t add_opts = WEFT_FUNCTION_OPTS_INIT;
    weft_service_t *service;
    opts.instance = "server_B";
    add_opts.number = 100; /* by which it can be called, too */
    weft::check(weft_service_open(rt.native(), "calc", &opts, &service));
    weft::check(weft_service_add(
        service, ADD,
        [](weft_request_t *request, void *) {
            const weft_value_t sum = weft_i32(add(request->args[0].i32, request->args[1].i32));
            weft_request_reply(request, &sum, 1);
        },
        nullptr, &add_opts));
    weft::check(weft_service_publish(service, nullptr, nullptr));
    std::puts("server_B: serves add, and is in the registry");
    return service;
}

/* --- the client --------------------------------------------------------------------------------------------------------- */

int call(weft::runtime &rt)
{
    weft::execution::scheduler sched(rt);
    weft_registry_t *registry;
    weft_client_t *client;
    weft_method_t *method;
    std::string signatures;
    weft::check(weft_registry_open(rt.native(), nullptr, nullptr, &registry));
    weft::check(weft_client_open(rt.native(), "weft://calc", nullptr, &client));
    weft::check(weft_client_method(client, ADD, &method));

    while (signatures.empty()) { /* until somebody is there */
        auto look = sched.schedule_after(std::chrono::milliseconds(1)) | ex::let_value([&] {
                        return sender(weft::action(find_spec{registry, "calc", &signatures}));
                    });
        weft::execution::sync_wait(sched, std::move(look));
    }
    std::printf("client: somebody offers %s", signatures.c_str());

    auto called = sender(weft::action(call_spec(method, 25, 17)).timeout(std::chrono::seconds(10)));
    auto [sum] = weft::execution::sync_wait(sched, std::move(called)).value();
    std::printf("client: add(25, 17) is %d\n", sum);

    weft::execution::sync_wait(sched,
                               ex::when_all(sender(weft::action(end_spec<weft_client_t, weft_client_close>{client})),
                                            sender(weft::action(end_spec<weft_registry_t, weft_registry_close>{registry}))));
    return sum;
}

int both()
{
    weft::runtime here = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD, .name = "server_B"});
    weft::runtime there = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD, .name = "client"});
    weft::listener door = here.listen("tcp://127.0.0.1:0");
    weft_service_t *service = serve(here);
    const int sum = call(there);
    weft::execution::sync_wait(weft::execution::scheduler(here),
                               sender(weft::action(end_spec<weft_service_t, weft_service_close>{service})));
    return sum == 42 ? 0 : 1;
}

} // namespace

int main()
{
    char place[] = "/tmp/weft-example-XXXXXX"; /* a registry of its own, so that it meets nobody else's servers */
    if (!mkdtemp(place)) {
        std::perror(place);
        return 1;
    }
    setenv("WEFT_REGISTRY", (std::string("dir://") + place).c_str(), 1);
    int failed = 1;
    try {
        failed = both();
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
    }
    if (rmdir(place))
        std::perror(place);
    return failed;
}
