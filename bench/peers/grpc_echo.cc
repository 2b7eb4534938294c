/* bench/peers/grpc_echo.cc - gRPC doing what Weft's calls do: a service that echoes over a Unix socket, or over TCP with TLS.
 *
 *     grpc_echo unary|sync|stream [--certs DIR] [--size N] [--window N] [--seconds S] [--count N] [--no-pin]
 *
 *   unary    a call for each request by the callback API, `window` of them under way; each starts the next from its callback
 *   sync     a call for each request by the blocking stub, one at a time: the least that a lone call costs
 *   stream   one stream in both directions by the callback API, `window` messages under way; writes that others follow are
 *            marked so, and gRPC packs them
 *
 * With --certs it goes over TCP on loopback, with TLS by certificates on both sides (`weft key cluster DIR bench=127.0.0.1`
 * makes them). The server has the callback API throughout. avg_us is the total time / requests, and with a window of 1 p50_us
 * that of the median one. One line of JSON. peer.h has the two processes; tests/tools/tools_peers.py and tools_bench_tls.py run
 * it. */
#include <atomic>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "echo.grpc.pb.h"
#include "peer.h"

using weft_echo::Bytes;
using weft_echo::Echo;

/* --- certificates ---------------------------------------------------------------------------------------- */

static std::string text_of(const peer_t *p, const char *file)
{
    const std::string path = std::string(p->certs) + "/" + file;
    std::ifstream in(path);
    std::ostringstream text;
    if (!in || !(text << in.rdbuf()))
        peer_die(p, path.c_str(), "cannot be read");
    return text.str();
}

static std::shared_ptr<grpc::ServerCredentials> server_credentials(const peer_t *p)
{
    if (!p->certs)
        return grpc::InsecureServerCredentials();
    grpc::SslServerCredentialsOptions o(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    o.pem_root_certs = text_of(p, "ca.crt");
    o.pem_key_cert_pairs.push_back({text_of(p, "bench.key"), text_of(p, "bench.crt")});
    return grpc::SslServerCredentials(o);
}

static std::shared_ptr<grpc::ChannelCredentials> client_credentials(const peer_t *p)
{
    if (!p->certs)
        return grpc::InsecureChannelCredentials();
    grpc::SslCredentialsOptions o;
    o.pem_root_certs = text_of(p, "ca.crt");
    o.pem_private_key = text_of(p, "bench.key");
    o.pem_cert_chain = text_of(p, "bench.crt");
    return grpc::SslCredentials(o);
}

/* --- the server ------------------------------------------------------------------------------------------ */

/* Reads go on while answers are written, one write at a time, as gRPC wants it. It deletes itself. */
class EchoStream : public grpc::ServerBidiReactor<Bytes, Bytes>
{
  public:
    EchoStream()
    {
        StartRead(&read_);
    }

    void OnReadDone(bool ok) override
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!ok) {
            over_ = true;
            if (answers_.empty()) {
                lock.unlock();
                Finish(grpc::Status::OK);
            }
            return;
        }
        answers_.emplace_back();
        answers_.back().Swap(&read_);
        if (answers_.size() == 1)
            Write();
        lock.unlock();
        StartRead(&read_);
    }

    void OnWriteDone(bool ok) override
    {
        std::unique_lock<std::mutex> lock(mutex_);
        answers_.pop_front();
        if (!ok)
            answers_.clear();
        if (!answers_.empty())
            Write();
        else if (over_) {
            lock.unlock();
            Finish(grpc::Status::OK);
        }
    }

    void OnDone() override
    {
        delete this;
    }

  private:
    void Write()
    {
        grpc::WriteOptions options;
        if (answers_.size() > 1)
            options.set_buffer_hint();
        StartWrite(&answers_.front(), options);
    }

    std::mutex mutex_;
    Bytes read_;
    std::deque<Bytes> answers_; /* the first is being written; none is moved by others that come */
    bool over_ = false;
};

class EchoService : public Echo::CallbackService
{
    grpc::ServerUnaryReactor *Once(grpc::CallbackServerContext *context, const Bytes *request, Bytes *answer) override
    {
        grpc::ServerUnaryReactor *reactor = context->DefaultReactor();
        answer->set_data(request->data());
        reactor->Finish(grpc::Status::OK);
        return reactor;
    }

    grpc::ServerBidiReactor<Bytes, Bytes> *Many(grpc::CallbackServerContext *) override
    {
        return new EchoStream;
    }
};

static void be_server(const peer_t *p, int fd)
{
    std::string address = "unix-abstract:weft-grpc-echo-" + std::to_string(getpid()); /* no file: nothing to leave behind */
    EchoService service;
    grpc::ServerBuilder builder;
    int port = 0;
    if (p->certs)
        address = "127.0.0.1:0";
    builder.AddListeningPort(address, server_credentials(p), &port);
    builder.RegisterService(&service);
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (!server)
        peer_die(p, address.c_str(), "cannot be listened on");
    if (p->certs)
        address = "127.0.0.1:" + std::to_string(port);
    peer_tell(p, fd, address.c_str());
    server->Wait();
}

/* --- the client ------------------------------------------------------------------------------------------ */

/* A count that one thread waits for and others fill. */
class Tally
{
  public:
    void Begin(uint64_t count)
    {
        count_ = count;
        over_ = false;
        started_ = finished_ = 0;
    }

    bool Start()
    {
        return started_.fetch_add(1, std::memory_order_relaxed) < count_;
    }

    void Finish()
    {
        if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_)
            End();
    }

    void End()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        over_ = true;
        changed_.notify_one();
    }

    void Wait(const peer_t *p)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        uint64_t seen = 0, deadline = 0;
        while (!over_) {
            if (changed_.wait_for(lock, std::chrono::milliseconds(200)) == std::cv_status::no_timeout)
                continue;
            uint64_t now = finished_.load(std::memory_order_relaxed);
            if (now != seen || !deadline)
                deadline = peer_now_ns() + PEER_LIMIT_S * PEER_SECOND;
            seen = now;
            peer_look_around(p, deadline);
        }
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;
    uint64_t count_ = 0;
    std::atomic<uint64_t> started_{0}, finished_{0};
};

struct Side {
    peer_t peer;
    std::unique_ptr<Echo::Stub> stub;
    Bytes request;
    Tally tally;

    void Check(const grpc::Status &status, const Bytes &answer) const
    {
        if (!status.ok())
            peer_die(&peer, "a call", status.error_message().c_str());
        if (answer.data().size() != peer.size || (peer.size && answer.data()[0] != 0x5a))
            peer_die(&peer, "an answer", "is not what was sent");
    }
};

/* One of `window` calls that are under way: it starts the next. */
struct Call {
    Side *side;
    std::unique_ptr<grpc::ClientContext> context;
    Bytes answer;
    uint64_t before;

    void Start()
    {
        if (!side->tally.Start())
            return;
        context.reset(new grpc::ClientContext); /* gRPC wants a new one for each call */
        side->stub->async()->Once(context.get(), &side->request, &answer, [this](grpc::Status status) {
            side->Check(status, answer);
            if (side->peer.samples)
                before = peer_sample(&side->peer, before);
            Tally *tally = &side->tally;
            Start();
            tally->Finish(); /* the last thing: then the call may be gone */
        });
    }
};

static uint64_t run_unary(void *user, uint64_t count)
{
    Side *s = static_cast<Side *>(user);
    const uint64_t start = peer_now_ns();
    std::vector<Call> calls(s->peer.window);
    s->tally.Begin(count);
    for (Call &call : calls) {
        call.side = s;
        call.before = peer_ticks();
        call.Start();
    }
    s->tally.Wait(&s->peer);
    return peer_now_ns() - start;
}

static uint64_t run_sync(void *user, uint64_t count)
{
    Side *s = static_cast<Side *>(user);
    uint64_t start = peer_now_ns(), before = peer_ticks();
    Bytes answer;
    for (uint64_t i = 0; i < count; i++) {
        grpc::ClientContext context;
        s->Check(s->stub->Once(&context, s->request, &answer), answer);
        before = peer_sample(&s->peer, before);
    }
    return peer_now_ns() - start;
}

class Asking : public grpc::ClientBidiReactor<Bytes, Bytes>
{
  public:
    Asking(Side *side, uint64_t count) : side_(side), count_(count), before_(peer_ticks())
    {
        side_->stub->async()->Many(&context_, this);
        Write();
        StartRead(&answer_);
        StartCall();
    }

    void OnReadDone(bool ok) override
    {
        if (!ok)
            return; /* OnDone() says why */
        side_->Check(grpc::Status::OK, answer_);
        if (side_->peer.samples)
            before_ = peer_sample(&side_->peer, before_);
        std::unique_lock<std::mutex> lock(mutex_);
        taken_++;
        if (!writing_ && More())
            Write();
        const bool last = taken_ == count_;
        lock.unlock();
        if (last)
            StartWritesDone();
        StartRead(&answer_);
    }

    void OnWriteDone(bool ok) override
    {
        std::lock_guard<std::mutex> lock(mutex_);
        writing_ = false;
        if (ok && More())
            Write();
    }

    void OnDone(const grpc::Status &status) override
    {
        if (!status.ok() || taken_ != count_)
            peer_die(&side_->peer, "a stream", status.error_message().c_str());
        side_->tally.End();
    }

  private:
    bool More() const
    {
        return sent_ < count_ && sent_ - taken_ < side_->peer.window;
    }

    void Write()
    {
        grpc::WriteOptions options;
        sent_++;
        writing_ = true;
        if (More()) /* and so it stays: answers only make room */
            options.set_buffer_hint();
        StartWrite(&side_->request, options);
    }

    Side *side_;
    const uint64_t count_;
    uint64_t before_;
    grpc::ClientContext context_;
    Bytes answer_;
    std::mutex mutex_;
    uint64_t sent_ = 0, taken_ = 0;
    bool writing_ = false;
};

static uint64_t run_stream(void *user, uint64_t count)
{
    Side *s = static_cast<Side *>(user);
    const uint64_t start = peer_now_ns();
    s->tally.Begin(UINT64_MAX);
    Asking asking(s, count);
    s->tally.Wait(&s->peer);
    return peer_now_ns() - start;
}

static void be_client(const peer_t *p, int fd)
{
    char address[256];
    Side s;
    s.peer = *p;
    peer_told(p, fd, address, sizeof address);
    s.stub = Echo::NewStub(grpc::CreateChannel(address, client_credentials(p)));
    s.request.set_data(std::string(p->size, 0x5a));
    if (s.peer.window == 1)
        peer_keep_samples(&s.peer);
    peer_measure(&s.peer, !strcmp(p->way, "unary") ? run_unary : !strcmp(p->way, "sync") ? run_sync : run_stream, &s, false);
    free(s.peer.samples);
}

int main(int argc, char **argv)
{
    peer_t p = {};
    int fds[2];
    p.name = "grpc_echo";
    p.ways = "unary|sync|stream";
    p.size = 64;
    p.window = 1;
    p.takes_certs = true;
    peer_options(&p, argc, argv);
    if (!strcmp(p.way, "sync"))
        p.window = 1;
    if (pipe(fds))
        peer_die(&p, "a pipe", strerror(errno));
    if (peer_fork(&p)) {
        close(fds[0]);
        be_server(&p, fds[1]);
        return 1; /* it serves until it is ended */
    }
    close(fds[1]);
    be_client(&p, fds[0]);
    peer_end(&p);
    return 0;
}
