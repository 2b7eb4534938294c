/* fault/rma_hostile_ucx.c - a client written straight against UCX, and one with bare sockets, that never say a word of our
 * hello: they connect to every TCP port a process with a region has open and try to read, write and add to its memory, with
 * forged, cut and garbage keys and with packets of their own making. It reads and changes nothing, the process lives on, and an
 * honest client is served before, meanwhile and after.
 *
 * They know everything: the addresses, the ports, what is there. With transports = ucx_tcp, which shows UCX's own port to the
 * network, UCX itself lets them (docs/design/security.md); that is told, and only that the process lives and serves is asked
 * there.
 *
 * ctest: timeout=300 long ucx */
#define TEST_SECONDS 120
#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include "must.h"
#include "test.h"
#include "weft/weft.h"

enum { SECRET = 16384, REGION = 32768, ALL = SECRET + REGION + SECRET, PORTS = 32 };

typedef struct board {
    char uri[256];
    volatile bool ready, stop;
    volatile unsigned tried, ended_well, leaked; /* the hostile one's operations */
    volatile uint64_t served;
} board_t;
static board_t *board;
static uint8_t *memory; /* secret, the region, secret: one mapping in all processes, so that all see all */

static void fill(void)
{
    memset(memory, 0x5e, ALL);
    for (size_t i = 0; i < REGION; i++)
        memory[SECRET + i] = (uint8_t)(i * 7 + 3);
}

static size_t changed(void)
{
    size_t n = 0;
    for (size_t i = 0; i < ALL; i++) {
        bool inside = i >= SECRET && i < SECRET + REGION;
        n += memory[i] != (inside ? (uint8_t)((i - SECRET) * 7 + 3) : 0x5e);
    }
    return n;
}

static pid_t child(void (*life)(const char *), const char *arg)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(100);
        life(arg);
        _exit(0);
    }
    return pid;
}

static int result_of(pid_t pid)
{
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* --- the one that is attacked --------------------------------------------------------------------------------------------- */

static void life_victim(const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    weft_runtime_t *rt;
    weft_listener_t *l;
    weft_region_t *region;
    weft_log_set_level(WEFT_LOG_NONE);
    o.transports = transports;
    must(weft_runtime_open(&o, &rt), "weft_runtime_open");
    must(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &l), "weft_listen");
    ro.buf = memory + SECRET;
    ro.len = REGION;
    ro.name = "mem";
    ro.rights = WEFT_RMA_READ;
    must(weft_region_new(rt, &ro, &region), "weft_region_new");
    snprintf(board->uri, sizeof board->uri, "%s", weft_listener_uri(l));
    board->ready = true;
    weft_op_t accepts[8] = {WEFT_OP_INIT};
    for (unsigned i = 0; i < 8; i++)
        must(weft_listener_accept(l, &accepts[i]), "weft_listener_accept");
    while (!board->stop) {
        weft_runtime_progress(rt);
        weft_runtime_get_stats(rt, &stats);
        board->served = stats.rma_served;
    }
    must(weft_runtime_close(rt), "weft_runtime_close");
}

/* --- an honest client: attaches, reads all of it, is refused what it may not ---------------------------------------------- */

static void life_honest(const char *transports)
{
    static uint8_t in[REGION];
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_op_t op = WEFT_OP_INIT;
    weft_log_set_level(WEFT_LOG_NONE);
    o.transports = transports;
    must(weft_runtime_open(&o, &rt), "honest: weft_runtime_open");
    must(weft_ep_open(rt, board->uri, NULL, &op, &ep), "honest: weft_ep_open");
    must(weft_op_wait(&op, 20 * WEFT_SECOND), "honest: connect");
    must(weft_remote_find(ep, "mem", NULL, &op), "honest: weft_remote_find");
    must(weft_op_wait(&op, 20 * WEFT_SECOND), "honest: find");
    weft_remote_t *r = op.buf;
    must(weft_rma_read(r, 0, in, REGION, &op), "honest: weft_rma_read");
    must(weft_op_wait(&op, 20 * WEFT_SECOND), "honest: read");
    if (memcmp(in, memory + SECRET, REGION))
        _exit(3);
    weft_status_t st = weft_rma_write(r, 0, in, 8, &op);
    if (!st)
        st = weft_op_wait(&op, 20 * WEFT_SECOND);
    if (st != WEFT_ERR_RIGHTS)
        _exit(4);
    weft_remote_drop(r);
    must(weft_ep_close(ep, &op), "honest: weft_ep_close");
    must(weft_op_wait(&op, 20 * WEFT_SECOND), "honest: close");
    must(weft_runtime_close(rt), "honest: weft_runtime_close");
}

/* --- ports ---------------------------------------------------------------------------------------------------------------- */

/* TCP ports that a process listens on: how many. */
static unsigned ports_of(pid_t pid, uint16_t *ports)
{
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    unsigned n = 0;
    for (unsigned t = 0; t < 2; t++) {
        FILE *f = fopen(tables[t], "r");
        char line[512];
        while (f && n < PORTS && fgets(line, sizeof line, f)) {
            unsigned port, state;
            unsigned long inode;
            char dir[64], path[512], link[64], want[64];
            if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %*d %*d %lu", &port, &state, &inode) != 3 ||
                state != 10)
                continue;
            snprintf(want, sizeof want, "socket:[%lu]", inode);
            snprintf(dir, sizeof dir, "/proc/%d/fd", (int)pid);
            DIR *d = opendir(dir);
            for (struct dirent *e; d && (e = readdir(d));) {
                snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
                ssize_t k = readlink(path, link, sizeof link - 1);
                link[k > 0 ? k : 0] = 0;
                if (!strcmp(link, want)) {
                    ports[n++] = (uint16_t)port;
                    break;
                }
            }
            if (d)
                closedir(d);
        }
        if (f)
            fclose(f);
    }
    return n;
}

/* --- the hostile one, with UCX -------------------------------------------------------------------------------------------- */

static void be_bare(void)
{
    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
}

typedef struct ux {
    ucp_context_h context;
    ucp_worker_h worker;
} ux_t;

static bool ux_open(ux_t *u)
{
    ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                      .features = UCP_FEATURE_RMA | UCP_FEATURE_AMO64 | UCP_FEATURE_AMO32 | UCP_FEATURE_TAG | UCP_FEATURE_AM};
    ucp_worker_params_t wp = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    return !ucp_init(&p, NULL, &u->context) && !ucp_worker_create(u->context, &wp, &u->worker);
}

static volatile bool ep_failed;
static void on_error(void *arg, ucp_ep_h ep, ucs_status_t st)
{
    (void)arg, (void)ep, (void)st;
    ep_failed = true;
}

static void drive(const ux_t *a, double seconds)
{
    for (double until = now() + seconds; now() < until && !ep_failed;)
        ucp_worker_progress(a->worker);
}

static ucs_status_t finish(const ux_t *a, ucs_status_ptr_t req)
{
    ucs_status_t st = UCS_PTR_IS_PTR(req) ? UCS_INPROGRESS : UCS_PTR_STATUS(req);
    for (double until = now() + 0.04; st == UCS_INPROGRESS && now() < until && !ep_failed;) {
        ucp_worker_progress(a->worker);
        st = ucp_request_check_status(req);
    }
    if (UCS_PTR_IS_PTR(req)) {
        if (st == UCS_INPROGRESS)
            ucp_request_cancel(a->worker, req);
        ucp_request_free(req);
    }
    return st;
}

/* Everything one can do to memory through an endpoint, with one key. */
static void assault(const ux_t *a, ucp_ep_h ep, ucp_rkey_h rkey)
{
    static const ucp_request_param_t plain;
    const uint64_t at[] = {(uintptr_t)memory, (uintptr_t)memory + SECRET, (uintptr_t)memory + SECRET + REGION};
    static uint8_t buf[8192];
    for (unsigned i = 0; i < 3 && !ep_failed; i++) {
        for (size_t n = 8; n <= sizeof buf && !ep_failed; n *= 1024) { /* in a packet, and by itself */
            memset(buf, 0, sizeof buf);
            board->tried++;
            if (!finish(a, ucp_get_nbx(ep, buf, n, at[i], rkey, &plain)) && buf[0])
                board->leaked++;
            memset(buf, 0xba, sizeof buf);
            board->tried++;
            board->ended_well += !finish(a, ucp_put_nbx(ep, buf, n, at[i] + 64, rkey, &plain));
            ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
            board->ended_well += !finish(a, ucp_ep_flush_nbx(ep, &p));
        }
        uint64_t one = 1, before = 0;
        ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER,
                                 .datatype = ucp_dt_make_contig(8),
                                 .reply_buffer = &before};
        board->tried++;
        if (!ep_failed && !finish(a, ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &one, 1, at[i] + 512, rkey, &p)) && before)
            board->leaked++;
    }
    drive(a, 0.005);
}

/* With every sort of key: made for memory of its own, cut, garbage. */
static void with_keys(const ux_t *a, const ux_t *b, ucp_ep_h ep)
{
    static uint8_t own[4096];
    ucp_mem_map_params_t mp = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH, .address = own, .length = sizeof own};
    ucp_mem_h mem;
    void *packed;
    size_t len;
    uint8_t key[512];
    if (ucp_mem_map(b->context, &mp, &mem) || ucp_rkey_pack(b->context, mem, &packed, &len) || len > sizeof key - 64)
        return;
    for (unsigned how = 0; how < 6 && !ep_failed; how++) {
        ucp_rkey_h rkey;
        memset(key, 0, sizeof key); /* what follows a cut one is zero */
        memcpy(key, packed, how == 1 ? len / 2 : how == 2 ? 2 : len);
        if (how == 3)
            memset(key + 2, 0, sizeof key - 2); /* no memory domain at all */
        if (how == 4 && len > 3)
            key[len - 1] ^= 0x55;
        if (how == 5) { /* its own address in it, if it is there, becomes theirs */
            uint64_t mine = (uintptr_t)own, theirs = (uintptr_t)memory;
            for (size_t i = 0; i + 8 <= len; i++)
                if (!memcmp(key + i, &mine, 8))
                    memcpy(key + i, &theirs, 8);
        }
        if (ucp_ep_rkey_unpack(ep, key, &rkey))
            continue;
        assault(a, ep, rkey);
        ucp_rkey_destroy(rkey);
    }
    ucp_rkey_buffer_release(packed);
    ucp_mem_unmap(b->context, mem);
}

static void attack_by(const ux_t *a, const ux_t *b, ucp_ep_params_t *p)
{
    ucp_ep_h ep;
    p->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    p->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    p->err_handler.cb = on_error;
    ep_failed = false;
    if (ucp_ep_create(a->worker, p, &ep))
        return;
    drive(a, 0.05);
    if (!ep_failed)
        with_keys(a, b, ep);
    ep_failed = false;
    finish(a, ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE));
}

/* The port of a worker is in its address: another's in its place makes an endpoint to that. */
static void attack_port(const ux_t *a, const ux_t *b, uint16_t theirs, const uint16_t *ours, unsigned n_ours)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(theirs), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ucp_ep_params_t p = {.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
                         .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
                         .sockaddr = {(struct sockaddr *)&to, sizeof to}};
    ucp_address_t *address;
    size_t len;
    attack_by(a, b, &p);
    if (ucp_worker_get_address(b->worker, &address, &len))
        return;
    for (unsigned i = 0; i < n_ours; i++) {
        uint8_t *forged = malloc(len);
        uint16_t from = htons(ours[i]), into = htons(theirs);
        bool found = false;
        memcpy(forged, address, len);
        for (size_t k = 0; k + 2 <= len; k++)
            if (!memcmp(forged + k, &from, 2)) {
                memcpy(forged + k, &into, 2);
                found = true;
            }
        ucp_ep_params_t by_address = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                                      .address = (ucp_address_t *)(void *)forged};
        if (found)
            attack_by(a, b, &by_address);
        free(forged);
    }
    ucp_worker_release_address(b->worker, address);
}

static pid_t victim_pid;

static void life_ucx(const char *unused)
{
    uint16_t theirs[PORTS], ours[PORTS];
    ux_t a = {0}, b = {0};
    (void)unused;
    be_bare();
    if (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout)) /* UCX complains of what it meets */
        _exit(5);
    /* what it does to itself by mistake is not theirs */
    if (mmap(memory, ALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != memory)
        _exit(5);
    if (!ux_open(&a) || !ux_open(&b))
        _exit(77);
    unsigned n_theirs = ports_of(victim_pid, theirs), n_ours = ports_of(getpid(), ours);
    for (unsigned i = 0; i < n_theirs; i++)
        attack_port(&a, &b, theirs[i], ours, n_ours);
    _exit(0);
}

/* --- the hostile one, with sockets ---------------------------------------------------------------------------------------- */

static void life_raw(const char *unused)
{
    uint16_t ports[PORTS];
    uint64_t word = 88172645463325252u;
    static uint8_t junk[70000];
    (void)unused;
    signal(SIGPIPE, SIG_IGN);
    unsigned n = ports_of(victim_pid, ports);
    for (unsigned i = 0; i < n; i++) {
        for (unsigned round = 0; round < 60; round++) {
            struct sockaddr_in to = {
                .sin_family = AF_INET, .sin_port = htons(ports[i]), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
            int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            (void)!connect(fd, (struct sockaddr *)&to, sizeof to);
            poll(&p, 1, 200);
            size_t len = round % 4 == 0 ? sizeof junk : 1 + round * 37 % 400;
            for (size_t k = 0; k < len; k++) {
                word ^= word << 13, word ^= word >> 7, word ^= word << 17;
                junk[k] = round % 5 == 1 ? 0 : round % 5 == 2 ? 0xff : (uint8_t)word;
            }
            if (round % 3 == 0)
                memcpy(junk, "WFT1", 4); /* the magic of our frames, and a length */
            if (round % 7 == 3) {        /* a place in memory, over and over */
                uint64_t at = (uintptr_t)memory;
                for (size_t k = 0; k + 8 <= len; k += 8)
                    memcpy(junk + k, &at, 8);
            }
            board->tried++;
            (void)!send(fd, junk, len, MSG_NOSIGNAL | MSG_DONTWAIT);
            usleep(1000);
            ssize_t got = recv(fd, junk, sizeof junk, MSG_DONTWAIT);
            for (ssize_t k = 0; k + 16 <= got; k++)
                board->leaked += !memcmp(junk + k, "\x5e\x5e\x5e\x5e\x5e\x5e\x5e\x5e\x5e\x5e\x5e\x5e\x5e\x5e\x5e\x5e", 16);
            close(fd);
        }
    }
    _exit(0);
}

/* --- ---------------------------------------------------------------------------------------------------------------------- */

static void set_up(void)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memory = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED && memory != MAP_FAILED);
    fill();
}

static void against(const char *transports, bool ucx_is_shown)
{
    uint16_t ports[PORTS];
    set_up();
    victim_pid = child(life_victim, transports);
    for (double until = test_now() + 20; !board->ready; usleep(1000))
        CHECK(test_now() < until);
    CHECK_EQ(result_of(child(life_honest, transports)), 0); /* from here on every port it ever opens is open */
    unsigned n = ports_of(victim_pid, ports);
    CHECK(n >= 1);
    CHECK_EQ(result_of(child(life_raw, NULL)), 0);
    unsigned raw = board->tried;
    CHECK_EQ(changed(), 0);
    CHECK_EQ(board->leaked, 0);
    int rc = result_of(child(life_ucx, NULL));
    printf("# %s: %u ports; %u tries by sockets, %u by UCX, of which %u were told that all is well; %zu bytes changed, %u read\n",
           transports, n, raw, board->tried - raw, board->ended_well, changed(), board->leaked);
    CHECK(kill(victim_pid, 0) == 0 && waitpid(victim_pid, NULL, WNOHANG) == 0); /* it lives */
    size_t bytes = changed();
    if (!ucx_is_shown)
        CHECK(bytes == 0 && board->leaked == 0);
    fill();
    CHECK_EQ(result_of(child(life_honest, transports)), 0); /* and serves */
    board->stop = true;
    CHECK_EQ(result_of(victim_pid), 0);
    if (rc == 77)
        SKIP("UCX does not open here with TCP alone");
    CHECK(rc == 0 || rc >= 128); /* what it does to itself is its own affair */
    if (bytes || board->leaked)
        SKIP("UCX's own TCP port lets strangers write %zu bytes and read %u times: docs/design/security.md", bytes,
             board->leaked);
}

/* A process with a UCX worker and nothing else. */
static void life_bare(const char *unused)
{
    ux_t u = {0};
    (void)unused;
    be_bare();
    if (!freopen("/dev/null", "w", stderr) || !ux_open(&u))
        _exit(77);
    board->ready = true;
    while (!board->stop)
        ucp_worker_progress(u.worker);
}

TEST(the_same_client_gets_into_a_process_of_bare_ucx)
{
    set_up();
    victim_pid = child(life_bare, NULL);
    for (double until = test_now() + 20; !board->ready && waitpid(victim_pid, NULL, WNOHANG) == 0; usleep(1000))
        CHECK(test_now() < until);
    int rc = board->ready ? result_of(child(life_ucx, NULL)) : 77;
    printf("# %u tries, %zu bytes changed, %u read\n", board->tried, changed(), board->leaked);
    size_t bytes = changed();
    board->stop = true;
    if (rc != 77)
        result_of(victim_pid);
    if (!bytes && !board->leaked)
        SKIP("this UCX gives it nothing either: what follows shows less than it could");
}

TEST(a_listener_with_the_default_transports_gives_strangers_nothing)
{
    against("all", false);
}

TEST(a_listener_with_tcp_gives_strangers_nothing)
{
    against("tcp", false);
}

TEST(a_listener_that_shows_the_port_of_ucx_lives_on_and_serves)
{
    against("ucx_tcp", true);
}
