/* A stranger over TCP who says that it is a process of this host and of this user, and names descriptors of any process as its
 * shared memory: none of them is opened. What would be noticed first is a POSIX lock, which a process loses when it closes any
 * descriptor of the file; so the process that is called holds one. */
#include <fcntl.h>
#include <sys/stat.h>

#include "lib/raw.h"
#include "test.h"

enum { SHM = 1 };

static weft_runtime_t *rt;
static weft_listener_t *l;
static int locked;

static int lock_file(void)
{
    char path[] = "/tmp/weft-locked-XXXXXX";
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = mkstemp(path);
    CHECK(fd >= 0 && !unlink(path) && !ftruncate(fd, 1 << 20) && !fcntl(fd, F_SETLK, &lock));
    return fd;
}

static bool still_locked(void)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        _exit(fcntl(locked, F_GETLK, &lock) || lock.l_type == F_UNLCK);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return !WEXITSTATUS(status);
}

/* What a process of this host and user says in its hello: everybody it calls knows it. */
static wefti_hello_t honest_hello(void)
{
    weft_runtime_t *caller;
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    wefti_hello_t h;
    char uri[64];
    uint16_t port;
    uint8_t buf[WEFTI_WIRE_MAX];
    const char *what;
    int listener = raw_listen(&port);
    snprintf(uri, sizeof uri, "tcp://127.0.0.1:%u", port);
    CHECK_OK(weft_runtime_open(NULL, &caller));
    CHECK_OK(weft_ep_open(caller, uri, NULL, &op, &ep));
    for (double end = test_now() + 0.02; test_now() < end;)
        weft_runtime_progress(caller);
    int fd = raw_accept(listener);
    long n = raw_recv(fd, buf, sizeof buf, 20, caller);
    CHECK(n > 0);
    CHECK_OK(wefti_hello_decode(buf, (size_t)n, WEFTI_SHAKE_HELLO, &h, &what));
    close(fd);
    close(listener);
    CHECK_OK(weft_runtime_close(caller));
    memset(h.uuid, 9, sizeof h.uuid);
    return h;
}

/* Say hello as one of this host, and join with this address: what comes back. */
static uint8_t join(const wefti_hello_t *h, const uint8_t *addr, size_t n)
{
    uint8_t buf[WEFTI_WIRE_MAX], hello[WEFTI_HELLO_MAX];
    wefti_hello_t w;
    const char *what;
    int fd = raw_connect(weft_listener_port(l));
    raw_send(fd, hello, wefti_hello_encode(h, WEFTI_SHAKE_HELLO, hello, sizeof hello));
    long got = raw_recv(fd, buf, sizeof buf, 20, rt);
    CHECK(got > 0);
    CHECK_OK(wefti_hello_decode(buf, (size_t)got, WEFTI_SHAKE_WELCOME, &w, &what));
    wefti_lane_msg_t j = {.type = WEFTI_SHAKE_JOIN, .attempt = 1, .kind = SHM, .addr = addr, .addr_len = n};
    raw_send(fd, buf, wefti_lane_msg_encode(&j, buf, sizeof buf));
    got = raw_recv(fd, buf, sizeof buf, 20, rt);
    CHECK(got > 0);
    close(fd);
    return buf[0];
}

typedef struct words {
    uint8_t bytes[256];
    size_t n;
} words_t;

static void put(words_t *w, uint64_t v, size_t n)
{
    memcpy(w->bytes + w->n, &v, n);
    w->n += n;
}

/* A lane's address as version 1 had it, and as version 2 has it, without what only a process of this host can add. */
static words_t address(int version, pid_t pid, int bell, int pipe, int ring)
{
    words_t w = {.n = 0};
    struct stat info;
    put(&w, (uint64_t)version, 4);
    put(&w, (uint64_t)pid, 4);
    put(&w, (uint64_t)bell, 4);
    put(&w, (uint64_t)pipe, 4);
    CHECK(!fstat(locked, &info));
    if (version == 2) {
        put(&w, info.st_ino, 8);
        put(&w, info.st_ino, 8);
    }
    put(&w, 1, 8); /* nonce */
    put(&w, 1, 8); /* where it stands */
    put(&w, 0, 4);
    put(&w, 0, 4);
    put(&w, (uint64_t)ring, 4);
    put(&w, 65536, 4);
    if (version == 2)
        put(&w, info.st_ino, 8);
    put(&w, 1, 8);
    if (version == 2)
        w.n += 32; /* zeroes for its MAC */
    return w;
}

static void start(void)
{
    weft_log_set_level(WEFT_LOG_ERROR);
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &l));
    locked = lock_file();
    CHECK(still_locked());
}

TEST(a_stranger_who_names_our_descriptors_costs_us_no_lock)
{
    start();
    wefti_hello_t h = honest_hello();
    for (int version = 1; version <= 2; version++) {
        for (int way = 0; way < 3; way++) {
            words_t a = address(version, getpid(), way == 0 ? locked : 0, way == 1 ? locked : 0, way == 2 ? locked : 0);
            CHECK_EQ(join(&h, a.bytes, a.n), WEFTI_SHAKE_RETRY);
            if (!still_locked())
                FAIL("version %d, descriptor %d: the lock is gone", version, way);
        }
    }
    close(dup(locked));
    CHECK(!still_locked()); /* that is how it would have been noticed */
    CHECK_OK(weft_runtime_close(rt));
}

/* Whatever is open, of this process and of others. */
TEST(a_stranger_who_names_everything_opens_nothing)
{
    start();
    wefti_hello_t h = honest_hello();
    int pipe_ends[2];
    char c;
    CHECK(!pipe2(pipe_ends, O_NONBLOCK));
    for (int fd = 0; fd < 64; fd++) {
        words_t a = address(1 + fd % 2, fd % 4 < 2 ? getpid() : getppid(), fd, fd, fd);
        if (fd == locked)
            a = address(1, getpid(), fd, fd, fd);
        CHECK_EQ(join(&h, a.bytes, a.n), WEFTI_SHAKE_RETRY);
    }
    CHECK(still_locked());
    CHECK(read(pipe_ends[0], &c, 1) < 0 && errno == EAGAIN);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_caller_who_is_not_of_this_host_learns_nothing_of_it)
{
    start();
    wefti_hello_t h = raw_hello(), w;
    uint8_t buf[WEFTI_WIRE_MAX], hello[WEFTI_HELLO_MAX];
    const char *what;
    h.n_transports = 2;
    h.transports[0] = (wefti_hello_transport_t){.kind = SHM, .caps_len = 4, .caps = {4}};
    h.transports[1] = (wefti_hello_transport_t){.kind = 4, .caps_len = 1, .caps = {2}};
    int fd = raw_connect(weft_listener_port(l));
    raw_send(fd, hello, wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, hello, sizeof hello));
    long n = raw_recv(fd, buf, sizeof buf, 20, rt);
    CHECK(n > 0);
    CHECK_OK(wefti_hello_decode(buf, (size_t)n, WEFTI_SHAKE_WELCOME, &w, &what));
    CHECK_EQ(w.n_transports, 1);
    CHECK_EQ(w.transports[0].kind, 4);
    close(fd);
    CHECK_OK(weft_runtime_close(rt));
}

/* And two processes of one host still find each other, whatever they called. */
TEST(one_host_is_one_host_over_every_address_of_it)
{
    static const char *const uris[] = {"tcp://127.0.0.1:0", "tcp://0.0.0.0:0", "unix://@weft-test-host"};
    for (int i = 0; i < 3; i++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        weft_ep_t *ep;
        char text[64];
        int up[2], status;
        CHECK(!pipe(up));
        fflush(NULL);
        pid_t pid = fork();
        if (!pid) {
            CHECK_OK(weft_runtime_open(NULL, &rt));
            CHECK_OK(weft_listen(rt, uris[i], NULL, &l));
            uint16_t port = weft_listener_port(l);
            CHECK_EQ(write(up[1], &port, 2), 2);
            for (double end = test_now() + 30; test_now() < end && getppid() != 1;)
                weft_runtime_progress(rt);
            _exit(1);
        }
        uint16_t port;
        CHECK_EQ(read(up[0], &port, 2), 2);
        snprintf(text, sizeof text, "tcp://127.0.0.1:%u", port);
        CHECK_OK(weft_runtime_open(NULL, &rt));
        CHECK_OK(weft_ep_open(rt, i < 2 ? text : uris[i], NULL, &op, &ep));
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        CHECK_OK(weft_ep_get_info(ep, &info));
        CHECK_STR(info.transport, "shm");
        CHECK_OK(weft_runtime_close(rt));
        kill(pid, SIGKILL);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    }
}
