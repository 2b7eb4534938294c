/* bench/handshake.c - what it costs two runtimes to meet over TCP: plain, and by each kind of handshake of TLS.
 *
 *     handshake plain|full|resumed|key [--certs DIR] [--seconds S] [--count N] [--no-pin]
 *
 *   plain    without TLS and without a key
 *   full     both show certificates (DIR has them) and prove their private keys
 *   resumed  they have met by these certificates before: no certificates, no signatures
 *   key      by a pre-shared key
 *
 * A meeting begins with weft_ep_open() and ends when both sides have their endpoint: the wire with its handshake and its hello,
 * and the lane with a handshake of its own. One thread drives both runtimes (peers/shake.h). avg_us and p50_us are the time of a
 * meeting, cpu_us the processor time of both sides until nothing is left to be done, the median. What closing costs is not in it.
 *
 * Who has met somebody before makes a short handshake. So each whole one is made to another listener, with a port of its own, and
 * a client that has been to all of them is followed by another. The runtimes count which kind it was: a meeting that was not
 * what it should be ends the program. One line of JSON. tests/tools/tools_bench_tls.py runs it. */
#include <sys/random.h>
#include <weft/weft.h>

#include "peers/shake.h"

#define LISTENERS 33u /* the first one is for a meeting that is not measured */
#define QUIET 16      /* rounds in which neither has anything to do */

typedef struct both {
    peer_t peer;
    shake_t shake;
    bool tls, full, again;
    char key[80], cert[4200], private_key[4200], ca[4200];
    weft_runtime_t *server, *client;
    weft_listener_t *listener[LISTENERS];
    unsigned visited; /* listeners that this client has been to */
    uint64_t resumed; /* by this client */
    char cipher[64];
} both_t;

static void must(const both_t *b, weft_status_t st, const char *what)
{
    char why[512];
    if (!st)
        return;
    snprintf(why, sizeof why, "%s (%s)", weft_status_text(st), weft_last_error());
    peer_die(&b->peer, what, why);
}

static weft_runtime_t *opened(const both_t *b)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_tls_opts_t files = WEFT_TLS_OPTS_INIT;
    weft_runtime_t *rt;
    o.progress = WEFT_PROGRESS_CALLER;
    o.transports = "tcp"; /* two of one host would share memory */
    if (*b->key) {
        o.key = b->key;
        o.key_len = strlen(b->key);
    } else if (b->tls) {
        files.cert = b->cert;
        files.key = b->private_key;
        files.ca = b->ca;
        o.tls = &files;
    }
    must(b, weft_runtime_open(&o, &rt), "a runtime");
    return rt;
}

static unsigned drive(const both_t *b)
{
    return (unsigned)(weft_runtime_progress(b->server) != 0) + (weft_runtime_progress(b->client) != 0);
}

static void await(const both_t *b, weft_op_t *op, const char *what)
{
    uint64_t deadline = 0;
    for (uint32_t i = 1; !weft_op_done(op); i++) {
        drive(b);
        if (i & 0xffff)
            continue;
        deadline = deadline ? deadline : peer_now_ns() + PEER_LIMIT_S * PEER_SECOND;
        if (peer_now_ns() > deadline)
            peer_die(&b->peer, what, "does not come to an end");
    }
    must(b, op->status, what);
}

static void until_quiet(const both_t *b)
{
    for (int quiet = 0; quiet < QUIET;)
        quiet = drive(b) ? 0 : quiet + 1;
}

/* Was it what it should be? */
static void check(both_t *b, weft_ep_t *ep, bool again)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    must(b, weft_ep_get_info(ep, &info), "an endpoint's facts");
    must(b, weft_runtime_get_stats(b->client, &stats), "counters");
    if (strcmp(info.transport, "tcp") || !*info.cipher == b->tls)
        peer_die(&b->peer, "the endpoint", b->tls ? "is not encrypted" : "is not plain TCP");
    if (stats.tls_resumed != b->resumed + again)
        peer_die(&b->peer, "the handshake", again ? "was a whole one" : "was a short one");
    b->resumed = stats.tls_resumed;
    snprintf(b->cipher, sizeof b->cipher, "%s", info.cipher);
}

static void meet(both_t *b, unsigned nth, bool again)
{
    weft_op_t open = WEFT_OP_INIT, accept = WEFT_OP_INIT, close[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    weft_ep_opts_t once = WEFT_EP_OPTS_INIT;
    weft_ep_t *ep;
    once.no_retry = true;
    must(b, weft_listener_accept(b->listener[nth], &accept), "accepting");
    shake_begin(&b->shake);
    must(b, weft_ep_open(b->client, weft_listener_uri(b->listener[nth]), &once, &open, &ep), "connecting");
    await(b, &open, "connecting");
    await(b, &accept, "accepting");
    shake_met(&b->shake);
    until_quiet(b);
    shake_end(&b->shake);
    check(b, ep, again);
    must(b, weft_ep_close(ep, &close[0]), "closing");
    must(b, weft_ep_close(weft_op_ep(&accept), &close[1]), "closing");
    await(b, &close[0], "closing");
    while (!weft_op_done(&close[1])) /* its peer may have been first */
        drive(b);
    until_quiet(b);
}

/* A client, and what is loaded once is loaded. */
static void begin(both_t *b)
{
    weft_runtime_close(b->client);
    b->client = opened(b);
    b->resumed = 0;
    b->visited = 1;
    meet(b, 0, false);
    b->shake.n--;
}

static void options(both_t *b, int argc, char **argv)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t random[32];
    peer_options(&b->peer, argc, argv);
    b->tls = strcmp(b->peer.way, "plain") != 0;
    b->full = !strcmp(b->peer.way, "full");
    b->again = !strcmp(b->peer.way, "resumed");
    if (!strcmp(b->peer.way, "key")) {
        if (getrandom(random, sizeof random, 0) != sizeof random)
            peer_die(&b->peer, "a key", strerror(errno));
        size_t at = (size_t)snprintf(b->key, sizeof b->key, "weft-key-1 ");
        for (size_t i = 0; i < sizeof random; i++) {
            b->key[at++] = digits[random[i] >> 4];
            b->key[at++] = digits[random[i] & 15];
        }
    }
    if ((b->full || b->again) && !b->peer.certs) {
        fprintf(stderr, "handshake: %s needs --certs DIR\n", b->peer.way);
        exit(2);
    }
    snprintf(b->cert, sizeof b->cert, "%s/bench.crt", b->peer.certs ? b->peer.certs : "");
    snprintf(b->private_key, sizeof b->private_key, "%s/bench.key", b->peer.certs ? b->peer.certs : "");
    snprintf(b->ca, sizeof b->ca, "%s/ca.crt", b->peer.certs ? b->peer.certs : "");
}

int main(int argc, char **argv)
{
    static both_t b = {.peer = {.name = "handshake", .ways = "plain|full|resumed|key", .takes_certs = true}};
    options(&b, argc, argv);
    peer_pin(&b.peer, 1);
    b.server = opened(&b);
    for (unsigned i = 0; i < (b.full ? LISTENERS : 1); i++)
        must(&b, weft_listen(b.server, b.tls ? "tls://127.0.0.1:0" : "tcp://127.0.0.1:0", NULL, &b.listener[i]), "listening");
    begin(&b);
    while (!shake_enough(&b.peer, &b.shake)) {
        if (b.full && b.visited == LISTENERS)
            begin(&b);
        meet(&b, b.full ? b.visited++ : 0, b.again);
    }
    shake_print(&b.peer, &b.shake, b.cipher);
    weft_runtime_close(b.client);
    weft_runtime_close(b.server);
    return 0;
}
