/* tests/fault/tls_captured.c - what is found by who records all that passes, or looks into the memory of a peer or at its core
 * dump: neither what 100 MiB of messages say nor a key in the records, no private key in the memory of the other end, and in that
 * of a third who speaks with the same server neither what was said nor the key of who said it.
 *
 * Each search is tried first where there is something to be found.
 *
 * ctest: openssl timeout=300 */
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

/* In what a process can write to, and so in what a core dump of it has. */
static unsigned find_in_memory_of(pid_t pid, const void *what, size_t len)
{
    char name[64], line[512];
    unsigned found = 0;
    static uint8_t piece[MIB + 64];
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
            found += n > 0 ? times(piece, (size_t)n, what, len) : 0;
        }
    }
    if (maps)
        fclose(maps);
    fclose(mem);
    return found;
}

static unsigned in_memory_of(pid_t pid, uint8_t what[2][32])
{
    return find_in_memory_of(pid, what[0], 32) + find_in_memory_of(pid, what[1], 32);
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

/* --- the memory of a third ---------------------------------------------------------------------------------------------- */

enum { SERVER, THIRD, STRANGER, CHILDREN };
static const char *const files[] = {"server", "third", "stranger"};
static int hears[CHILDREN][2], says[2]; /* pipes: each hears the address, and says that it is done */

static void swallows(weft_am_t *am, void *user)
{
    static uint8_t in[MIB];
    static weft_op_t op;
    (void)user;
    op = (weft_op_t)WEFT_OP_INIT;
    CHECK_OK(weft_am_pull(am, in, sizeof in, &op)); /* the next one is not sent before */
}

static weft_runtime_t *opens(const char *file)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    setenv("WEFT_KEY_FILE", certs_file(file, "keys"), 1);
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

/* One of three processes, begun before there is anything to be found: what it has of that, it was told. */
static pid_t child(int which)
{
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    char uri[128] = "";
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    weft_listener_t *l;
    weft_ep_t *ep;
    fflush(NULL);
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setrlimit(RLIMIT_CORE, &all);
    CHECK(!chdir(certs_folder()) && read(hears[which][0], uri, sizeof uri - 1) > 0);
    weft_runtime_t *rt = opens(files[which]);
    if (which == SERVER) {
        CHECK_OK(weft_am_handle(rt, 1, swallows, NULL, NULL));
        CHECK_OK(weft_listen(rt, uri, NULL, &l));
        snprintf(uri, sizeof uri, "%s", weft_listener_uri(l));
    } else {
        o.no_retry = true;
        weft_status_t st = weft_ep_connect(rt, uri, &o, 60 * WEFT_SECOND, &ep);
        CHECK_EQ(st, which == THIRD ? WEFT_OK : WEFT_ERR_AUTH);
        if (!st)
            CHECK_OK(weft_am_send(ep, 1, "h", 1, "hello", 5, NULL));
    }
    CHECK(write(says[1], uri, strlen(uri)) > 0);
    for (;;)
        pause();
}

static void tell(int which, const char *uri, char answer[128])
{
    CHECK(write(hears[which][1], uri, strlen(uri)) == (ssize_t)strlen(uri));
    ssize_t n = read(says[0], answer, 127);
    CHECK(n > 0);
    answer[n] = 0;
}

static void put(const char *file, const char *text)
{
    int fd = open(certs_file(file, "keys"), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* In what it left when it died. False: the system keeps that elsewhere, or not at all. */
static bool find_in_core_of(pid_t pid, const void *what, size_t len, unsigned *found)
{
    for (int i = 0; i < 2; i++) {
        char path[160];
        struct stat info;
        snprintf(path, sizeof path, i ? "%s/core.%d" : "%s/core", certs_folder(), (int)pid);
        int fd = open(path, O_RDONLY);
        if (fd < 0)
            continue;
        CHECK(!fstat(fd, &info) && info.st_size > 0);
        void *all = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        CHECK(all != MAP_FAILED);
        *found = times(all, (size_t)info.st_size, what, len);
        munmap(all, (size_t)info.st_size);
        close(fd);
        return true;
    }
    return false;
}

static void dies(pid_t pid)
{
    int status;
    CHECK(!kill(pid, SIGABRT) && waitpid(pid, &status, 0) == pid);
}

TEST(a_third_has_neither_what_two_say_nor_the_key_of_one)
{
    static uint8_t out[MIB];
    uint8_t secret[NEEDLE], mine[32];
    char text[2][80], both[200], uri[128], answer[128];
    unsigned in_core;
    weft_ep_t *ep;
    pid_t pids[CHILDREN];
    weft_log_set_level(WEFT_LOG_NONE);
    certs_folder();
    CHECK(!pipe(says));
    for (int i = 0; i < CHILDREN; i++) {
        CHECK(!pipe(hears[i]));
        pids[i] = child(i);
    }
    for (int k = 0; k < 2; k++) {
        int n = snprintf(text[k], sizeof text[k], "weft-key-1 ");
        CHECK(getrandom(mine, sizeof mine, 0) == sizeof mine); /* the second one stays */
        for (int i = 0; i < 32; i++)
            n += snprintf(text[k] + n, sizeof text[k] - (size_t)n, "%02x", mine[i]);
    }
    CHECK(getrandom(secret, sizeof secret, 0) == sizeof secret);
    snprintf(both, sizeof both, "%s third\n%s mine\n", text[0], text[1]);
    put("server", both);
    put("third", text[0]);
    put("mine", text[1]);
    put("stranger", key);
    tell(SERVER, "tls://127.0.0.1:0", uri);
    tell(THIRD, uri, answer);
    tell(STRANGER, uri, answer);
    for (size_t i = 0; i + NEEDLE <= sizeof out; i += 64)
        memcpy(out + i, secret, NEEDLE);
    weft_runtime_t *rt = opens("mine");
    CHECK_OK(weft_ep_connect(rt, uri, NULL, 60 * WEFT_SECOND, &ep));
    for (int i = 0; i < MESSAGES; i++) {
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_am_send(ep, 1, "h", 1, out, i % 4 ? sizeof out : 3000, &op));
        CHECK_OK(weft_op_wait(&op, 60 * WEFT_SECOND));
    }
    CHECK(find_in_memory_of(pids[SERVER], mine, sizeof mine) > 0); /* where it has to be it is found */
    CHECK(find_in_memory_of(pids[SERVER], secret, NEEDLE) > 0);
    for (int i = THIRD; i < CHILDREN; i++) {
        CHECK_EQ(find_in_memory_of(pids[i], mine, sizeof mine), 0);
        CHECK_EQ(find_in_memory_of(pids[i], text[1] + 11, 64), 0);
        CHECK_EQ(find_in_memory_of(pids[i], secret, NEEDLE), 0);
    }
    for (int i = 0; i < CHILDREN; i++) {
        dies(pids[i]);
        if (!find_in_core_of(pids[i], mine, sizeof mine, &in_core)) {
            printf("# there is no core dump to look at\n");
            continue;
        }
        CHECK_EQ(in_core > 0, i == SERVER);
        CHECK(find_in_core_of(pids[i], secret, NEEDLE, &in_core));
        CHECK_EQ(in_core > 0, i == SERVER);
        unlink("core");
    }
    CHECK_OK(weft_runtime_close(rt));
}
