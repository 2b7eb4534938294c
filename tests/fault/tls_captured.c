/* tests/fault/tls_captured.c - what is found by who records all that passes, or looks into the memory of a peer: neither what
 * 100 MiB of messages say nor a key in the records, and no private key in the memory of the other end.
 *
 * Each search is tried first where there is something to be found.
 *
 * ctest: openssl timeout=300 */
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/prctl.h>
#include <weft/weft.h>

#include "between.h"
#include "certs.h"
#include "test.h"

enum { MIB = 1 << 20, MESSAGES = 100, NEEDLE = 16 };
static const char key[] = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0";
static const char needle[] = "plain-to-be-read"; /* at every 64th byte of what is sent */
static uint8_t raw_key[32];

/* --- what passes ------------------------------------------------------------------------------------------------------------ */

static struct {
    uint8_t last[64][64]; /* of each direction: a needle may come in two pieces */
    size_t last_n[64];
    uint64_t bytes;
    unsigned found, keys;
} heap;

static unsigned times(const uint8_t *in, size_t n, const void *what, size_t len)
{
    unsigned found = 0;
    for (const uint8_t *at = in; (at = memmem(at, n - (size_t)(at - in), what, len)); at++)
        found++;
    return found;
}

static void look(const uint8_t *bytes, size_t n, unsigned from, void *user)
{
    static uint8_t all[128 << 10];
    size_t had = heap.last_n[from % 64];
    (void)user;
    memcpy(all, heap.last[from % 64], had);
    memcpy(all + had, bytes, n);
    heap.bytes += n;
    heap.found += times(all, had + n, needle, NEEDLE);
    heap.keys += times(all, had + n, raw_key, sizeof raw_key) + times(all, had + n, key + 11, 64);
    size_t keep = had + n < NEEDLE - 1 ? had + n : NEEDLE - 1;
    memcpy(heap.last[from % 64], all + had + n - keep, keep);
    heap.last_n[from % 64] = keep;
}

/* Over this scheme: how often the needle was seen. */
static unsigned sent_over(const char *uri, unsigned messages)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt[2];
    weft_listener_t *l;
    weft_ep_t *ep, *other;
    static uint8_t out[MIB], in[MIB];
    for (size_t i = 0; i + NEEDLE <= sizeof out; i += 64)
        memcpy(out + i, needle, NEEDLE);
    setenv("WEFT_INTERFACES", "lo", 1);
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    o.key = key;
    o.key_len = sizeof key - 1;
    memset(&heap, 0, sizeof heap);
    between_plan(&(between_plan_t){.what = BETWEEN_NOTHING});
    between_listen(look, NULL);
    for (int i = 0; i < 2; i++)
        CHECK_OK(weft_runtime_open(&o, &rt[i]));
    CHECK_OK(weft_listen(rt[0], uri, NULL, &l));
    CHECK_OK(weft_ep_open(rt[1], weft_listener_uri(l), NULL, NULL, &ep));
    CHECK_OK(weft_listener_accept_wait(l, 60 * WEFT_SECOND, &other));
    for (unsigned i = 0; i < messages; i++) {
        weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        size_t n = i % 4 ? sizeof out : 3000; /* large ones have a connection of their own */
        CHECK_OK(weft_msg_recv(other, in, n, 1, WEFT_TAG_FULL, &recv));
        CHECK_OK(weft_msg_send(ep, out, n, 1, &send));
        CHECK_OK(weft_op_wait(&send, 60 * WEFT_SECOND));
        CHECK_OK(weft_op_wait(&recv, 60 * WEFT_SECOND));
        CHECK(!memcmp(in, out, n));
    }
    for (int i = 2; i-- > 0;)
        CHECK_OK(weft_runtime_close(rt[i]));
    between_listen(NULL, NULL);
    return heap.found;
}

TEST(nothing_of_100_mib_is_in_what_passes_nor_a_key)
{
    for (int i = 0; i < 32; i++) {
        unsigned byte;
        CHECK_EQ(sscanf(key + 11 + 2 * i, "%2x", &byte), 1);
        raw_key[i] = (uint8_t)byte;
    }
    CHECK(sent_over("tcp://127.0.0.1:0", 4) > 3 * (MIB / 64) - 100); /* where it can be read it is found */
    CHECK_EQ(heap.keys, 0);
    CHECK_EQ(sent_over("tls://127.0.0.1:0", MESSAGES * 4 / 3), 0);
    CHECK(heap.bytes > (uint64_t)MESSAGES * MIB * 9 / 10);
    CHECK_EQ(heap.keys, 0);
    printf("# %llu bytes passed\n", (unsigned long long)heap.bytes);
}

/* --- the memory of the other end -------------------------------------------------------------------------------------------- */

static void private_part(const char *name, uint8_t out[2][32])
{
    FILE *f = fopen(certs_file(name, "key"), "r");
    EVP_PKEY *pkey = f ? PEM_read_PrivateKey(f, NULL, NULL, NULL) : NULL;
    BIGNUM *n = NULL;
    CHECK(pkey && EVP_PKEY_get_bn_param(pkey, "priv", &n) == 1);
    CHECK(BN_bn2binpad(n, out[0], 32) == 32 && BN_bn2lebinpad(n, out[1], 32) == 32); /* as in a file, and as OpenSSL keeps it */
    BN_clear_free(n);
    EVP_PKEY_free(pkey);
    fclose(f);
}

static unsigned in_memory_of(pid_t pid, uint8_t what[2][32])
{
    char name[64], line[512];
    unsigned found = 0;
    static uint8_t piece[MIB + 32];
    snprintf(name, sizeof name, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(name, "r");
    snprintf(name, sizeof name, "/proc/%d/mem", (int)pid);
    FILE *mem = fopen(name, "r");
    if (!mem)
        SKIP("/proc/PID/mem cannot be read here");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx rw", &from, &to) != 2 || !strstr(line, " rw") || to - from > (UINT64_C(1) << 30))
            continue;
        for (unsigned long at = from; at < to; at += MIB) {
            ssize_t n = pread(fileno(mem), piece, to - at < sizeof piece ? to - at : sizeof piece, (off_t)at);
            for (int i = 0; i < 2 && n > 0; i++)
                found += times(piece, (size_t)n, what[i], 32);
        }
    }
    if (maps)
        fclose(maps);
    fclose(mem);
    return found;
}

TEST(a_private_key_is_not_in_the_memory_of_the_other_end)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    uint8_t ours[2][32], theirs[2][32];
    weft_runtime_t *rt;
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    char uri[128] = "";
    int fds[2], status;
    certs_usual();
    certs_make(&(cert_t){.name = "client", .by = "ca", .san = "DNS:client.example"});
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    CHECK(!pipe(fds));
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        weft_listener_t *l;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        certs_use("node", "ca");
        CHECK_OK(weft_runtime_open(&o, &rt));
        CHECK_OK(weft_listen(rt, "tls://127.0.0.1:0", NULL, &l));
        CHECK(write(fds[1], weft_listener_uri(l), strlen(weft_listener_uri(l))) > 0);
        for (;;)
            pause();
    }
    CHECK(read(fds[0], uri, sizeof uri - 1) > 0);
    certs_use("client", "ca");
    CHECK_OK(weft_runtime_open(&o, &rt));
    CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
    CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
    private_part("client", ours);
    private_part("node", theirs);
    CHECK(in_memory_of(pid, theirs) > 0); /* where it has to be it is found */
    CHECK_EQ(in_memory_of(pid, ours), 0);
    CHECK_OK(weft_runtime_close(rt));
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}
