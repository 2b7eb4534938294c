/* examples/coroutines/coroutines.cc - coroutines over Weft: a server and a client, each a task.
 *
 * The server has a runtime with a thread of its own, and is another process in real life. docs/guide/cpp.md shows parts of it. */
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>
#include <weft/weft.hpp>

using namespace std::chrono_literals;

enum tags : std::uint64_t { QUESTION = 1, ANSWER = 2, NUMBERS = 3, SUM = 4, NEVER = 5 };
enum ids : std::uint32_t { NOTE = 7 };

/* --- the server --------------------------------------------------------------------------------------------- */

/* Questions of one peer, until it closes. */
static weft::task<> answer(weft::endpoint_ref ep)
{
    auto questions = weft::messages(ep, QUESTION);
    while (std::optional<weft::arrived> asked = co_await questions.next()) {
        std::string text = "you asked: " + std::string(asked->data.text());
        co_await ep.send(text, ANSWER);
    }
}

/* Numbers come as messages of any length, up to a million bytes. */
static weft::task<> add_up(weft::endpoint_ref ep)
{
    auto all = weft::messages(ep, NUMBERS, WEFT_TAG_FULL, 1000000);
    while (std::optional<weft::arrived> got = co_await all.next()) {
        std::vector<std::int64_t> numbers(got->data.size() / sizeof(std::int64_t));
        std::memcpy(numbers.data(), got->data.data(), numbers.size() * sizeof(std::int64_t));
        co_await ep.send(std::accumulate(numbers.begin(), numbers.end(), std::int64_t(0)), SUM);
    }
}

static weft::task<> serve(weft::endpoint ep)
{
    co_await weft::when_all(answer(ep), add_up(ep));
}

/* Every peer that comes, each in a task of its own. */
static weft::task<> serve_all(weft::listener &door, weft::scope &scope)
{
    auto peers = weft::incoming(door);
    while (std::optional<weft::endpoint> ep = co_await peers.next())
        scope.spawn(serve(std::move(*ep)));
}

/* --- the client --------------------------------------------------------------------------------------------- */

static weft::task<std::string> ask(weft::endpoint_ref ep, std::string question)
{
    co_await ep.send(question, QUESTION);
    weft::arrived answer = co_await ep.recv_alloc(ANSWER).timeout(10s);
    co_return std::string(answer.data.text());
}

/* A send and a receive at once. */
static weft::task<std::int64_t> sum(weft::endpoint_ref ep, const std::vector<std::int64_t> &numbers)
{
    auto [sent, total] = co_await weft::when_all(ep.send(numbers, NUMBERS), ep.recv<std::int64_t>(SUM));
    co_return total;
}

static weft::task<int> wait_for_what_never_comes(weft::endpoint_ref ep)
{
    co_return co_await ep.recv<int>(NEVER);
}

/* Failures are exceptions, or results where they are expected. */
static weft::task<> be_patient(weft::runtime_ref rt, weft::endpoint_ref ep)
{
    weft::result<int> got = co_await ep.recv<int>(NEVER).timeout(5ms).as_result();
    std::printf("nobody sent that: %s\n", got ? "?" : got.error().message().c_str());
    try {
        co_await weft::with_timeout(rt, wait_for_what_never_comes(ep), 5ms);
    } catch (const weft::error &e) {
        std::printf("nor that: %s\n", e.code() == weft::errc::timeout ? e.what() : "?");
    }
}

/* The first that succeeds: the others are stopped, and have ended, before this goes on. */
static weft::task<> whichever_is_first(weft::runtime_ref rt, weft::endpoint_ref ep)
{
    int value;
    auto first = co_await weft::when_any(ep.recv(value, NEVER), rt.sleep_for(2ms));
    std::printf("number %zu was first\n", first.index);
}

/* Memory of the server, read and written without its doing. */
static weft::task<> share(weft::endpoint_ref ep)
{
    weft::remote table = co_await ep.find("table");
    co_await table.write(0, std::int64_t(40));
    std::int64_t before = co_await table.fetch_add<std::int64_t>(0, 2);
    std::int64_t after = co_await table.read<std::int64_t>(0);
    std::printf("from %lld to %lld\n", static_cast<long long>(before), static_cast<long long>(after));
}

static weft::task<> be_a_client(weft::runtime_ref rt, std::string uri)
{
    weft::endpoint ep = co_await rt.connect(uri.c_str()).timeout(10s);
    std::printf("%s\n", (co_await ask(ep, "why?")).c_str());
    std::vector<std::int64_t> numbers(1000);
    std::iota(numbers.begin(), numbers.end(), 1);
    std::printf("the sum is %lld\n", static_cast<long long>(co_await sum(ep, numbers)));
    co_await ep.am(NOTE, "a note", numbers);
    co_await whichever_is_first(rt, ep);
    co_await share(ep);
    co_await be_patient(rt, ep);
    co_await ep.close();
}

int main()
{
    try {
        weft::runtime there = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD, .name = "server"});
        weft::listener door = there.listen("tcp://127.0.0.1:0");
        weft::region table = there.new_region({.len = 4096, .name = "table"});
        weft::scope scope;
        weft::handler notes = weft::serve(there, NOTE, scope, [](weft::message note) -> weft::task<> {
            std::vector<std::int64_t> numbers(note.size() / sizeof(std::int64_t));
            co_await note.pull(numbers);
            std::printf("a note of %zu numbers came\n", numbers.size());
        });
        scope.spawn(serve_all(door, scope));

        weft::runtime here = weft::runtime::open({.name = "client"});
        weft::sync_wait(here, be_a_client(here, door.uri()));

        notes = {};
        door.close().wait();
        weft::sync_wait(there, scope.join());
    } catch (const std::exception &e) {
        std::fprintf(stderr, "coroutines: %s\n", e.what());
        return 1;
    }
    return 0;
}
