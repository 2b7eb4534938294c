/* tests/wire/tls_files.c - files of keys, certificates and policies that are no files, that change while peers come, and that
 * cannot be read for a while; and what goes on beside the thread that reads them: a runtime that closes, a process that forks.
 *
 * ctest: openssl timeout=300 label=thread */
#define TEST_SECONDS 120
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <weft/weft.h>

#include "certs.h"
#include "test.h"

#define KEY(last) "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcde" last
enum { LONG = 60 };

static weft_runtime_t *server, *client;
static weft_listener_t *listener;
static _Atomic int warned;

static void sink(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    if (level == WEFT_LOG_WARN && (strstr(line, "still used") || strstr(line, "stays in force")))
        atomic_fetch_add(&warned, 1);
}

static void listen_to_warnings(void)
{
    weft_log_set_level(WEFT_LOG_WARN);
    weft_log_set_sink(sink, NULL);
}

static void put(const char *path, const char *text)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static void copy(const char *from, const char *to)
{
    char text[16384];
    int fd = open(from, O_RDONLY);
    CHECK(fd >= 0);
    ssize_t n = read(fd, text, sizeof text - 1);
    CHECK(n > 0);
    text[n] = 0;
    close(fd);
    put(to, text);
}

static weft_status_t opens(weft_runtime_t **rt)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    return weft_runtime_open(&o, rt);
}

static void serve(void)
{
    CHECK_OK(opens(&server));
    CHECK_OK(weft_listen(server, "tls://127.0.0.1:0", NULL, &listener));
}

static weft_status_t call(weft_ep_t **ep)
{
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    o.no_retry = true;
    return weft_ep_connect(client, weft_listener_uri(listener), &o, LONG * WEFT_SECOND, ep);
}

static bool is_up(weft_ep_t *ep)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    return !weft_ep_get_info(ep, &info) && info.state == WEFT_EP_UP;
}

static void end(void)
{
    weft_log_set_sink(NULL, NULL);
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

/* --- no files --------------------------------------------------------------------------------------------------------------- */

static const char *const variables[] = {"WEFT_TLS_CERT", "WEFT_TLS_KEY",  "WEFT_TLS_CA",
                                        "WEFT_TLS_CRL",  "WEFT_KEY_FILE", "WEFT_POLICY"};
enum { VARIABLES = sizeof variables / sizeof *variables };

/* A folder, a fifo that nobody writes to, a device that has no end, 65 MiB of nothing. */
static const char *no_file(int kind)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/kind.%d", certs_folder(), kind);
    unlink(path);
    switch (kind) {
    case 0:
        return certs_folder();
    case 1:
        CHECK(!mkfifo(path, 0600));
        return path;
    case 2:
        return "/dev/zero";
    default:
        put(path, "");
        CHECK(!truncate(path, 65 << 20));
        return path;
    }
}

TEST(what_is_no_file_is_refused_and_named)
{
    certs_usual();
    weft_log_set_level(WEFT_LOG_NONE);
    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < VARIABLES; i++) {
            weft_runtime_t *rt;
            weft_listener_t *l;
            const char *path = no_file(kind);
            certs_use("node", "ca");
            setenv(variables[i], path, 1);
            weft_status_t st = opens(&rt);
            bool opened = !st;
            if (opened)
                st = weft_listen(rt, "tls://127.0.0.1:0", NULL, &l);
            if (st != WEFT_ERR_INVALID || !strstr(weft_last_error(), path))
                FAIL("%s=%s: %s (%s)", variables[i], path, weft_status_name(st), weft_last_error());
            if (opened)
                CHECK_OK(weft_runtime_close(rt));
            unsetenv(variables[i]);
        }
    }
}

TEST(what_becomes_none_while_a_runtime_is_open_changes_nothing)
{
    weft_ep_t *ep[2];
    certs_usual();
    for (int i = 0; i < 3; i++)
        copy(certs_file(i == 2 ? "ca" : "node", i == 1 ? "key" : "crt"),
             certs_file(i == 2 ? "their" : "its", i == 1 ? "key" : "crt"));
    certs_use("its", "their");
    serve();
    certs_use("node", "ca");
    CHECK_OK(opens(&client));
    CHECK_OK(call(&ep[0]));
    listen_to_warnings();
    for (int kind = 0; kind < 4; kind++) {
        int i = kind % 3, before = atomic_load(&warned);
        const char *path = certs_file(i == 2 ? "their" : "its", i == 1 ? "key" : "crt"), *what = no_file(kind);
        char fresh[160];
        snprintf(fresh, sizeof fresh, "%s/fresh", certs_folder());
        CHECK(!symlink(what, fresh) && !rename(fresh, path));
        if (!kind) /* where one is told of, so are the others */
            TEST_UNTIL(atomic_load(&warned) > before, LONG);
        else
            usleep(210000); /* so that the next one looks */
        CHECK_OK(call(&ep[1]));
        CHECK_OK(weft_ep_close(ep[1], NULL));
        CHECK(!unlink(path));
        copy(certs_file(i == 2 ? "ca" : "node", i == 1 ? "key" : "crt"), path);
    }
    CHECK(is_up(ep[0]));
    end();
}

/* --- files that cannot be read for a while ---------------------------------------------------------------------------------- */

/* The file is another one at a moment when the process has no descriptor left; when it has some again, the connection ends. */
static void without_descriptors(const char *path, const char *fresh)
{
    struct rlimit r, none = {.rlim_cur = 3};
    weft_ep_t *ep;
    CHECK_OK(call(&ep));
    TEST_UNTIL(is_up(ep), LONG);
    listen_to_warnings();
    CHECK(!getrlimit(RLIMIT_NOFILE, &r));
    none.rlim_max = r.rlim_max;
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    CHECK(!rename(fresh, path));
    TEST_UNTIL(atomic_load(&warned), LONG);
    CHECK(is_up(ep));
    CHECK(!setrlimit(RLIMIT_NOFILE, &r));
    TEST_UNTIL(!is_up(ep), LONG);
    CHECK_EQ(atomic_load(&warned), 1);
    end();
}

TEST(a_key_is_taken_out_while_there_are_no_descriptors)
{
    const char *path = certs_file("keys", "txt"), *fresh = certs_file("fresh", "txt"), *one = certs_file("one", "txt");
    put(path, KEY("f0") " a\n" KEY("f1") " b\n");
    put(fresh, KEY("f1") " b\n");
    put(one, KEY("f0") " a\n");
    setenv("WEFT_KEY_FILE", path, 1);
    serve();
    setenv("WEFT_KEY_FILE", one, 1);
    CHECK_OK(opens(&client));
    without_descriptors(path, fresh);
}

TEST(an_authority_is_taken_out_while_there_are_no_descriptors)
{
    certs_usual();
    certs_make(&(cert_t){.name = "other", .ca = true});
    copy(certs_file("ca", "crt"), certs_file("their", "crt"));
    copy(certs_file("other", "crt"), certs_file("fresh", "crt"));
    certs_use("node", "their");
    serve();
    certs_use("node", "ca");
    CHECK_OK(opens(&client));
    without_descriptors(certs_file("their", "crt"), certs_file("fresh", "crt"));
}

TEST(a_name_is_denied_while_there_are_no_descriptors)
{
    char path[128], fresh[128];
    certs_usual();
    snprintf(path, sizeof path, "%s/rules", certs_folder());
    snprintf(fresh, sizeof fresh, "%s/fresh", certs_folder());
    put(path, "default allow\n");
    put(fresh, "deny node.example connect\ndefault allow\n");
    certs_use("node", "ca");
    setenv("WEFT_POLICY", path, 1);
    serve();
    unsetenv("WEFT_POLICY");
    CHECK_OK(opens(&client));
    without_descriptors(path, fresh);
}

/* --- what goes on beside ---------------------------------------------------------------------------------------------------- */

static _Atomic bool enough;

/* First a half of it, then the whole: two certificates of one authority take turns, and their keys. */
static void *writes(void *user)
{
    (void)user;
    for (int turn = 0; !atomic_load(&enough); turn++) {
        for (int i = 0; i < 2; i++) {
            char text[8192];
            int from = open(certs_file(turn % 2 ? "second" : "first", i ? "key" : "crt"), O_RDONLY);
            CHECK(from >= 0);
            ssize_t n = read(from, text, sizeof text);
            CHECK(n > 0);
            close(from);
            int to = open(certs_file("its", i ? "key" : "crt"), O_WRONLY | O_TRUNC);
            CHECK(to >= 0 && write(to, text, (size_t)n / 2) == n / 2);
            usleep(20000);
            CHECK(write(to, text + n / 2, (size_t)(n - n / 2)) == n - n / 2);
            close(to);
        }
        usleep(150000);
    }
    return NULL;
}

TEST(files_that_are_written_while_peers_come_keep_nobody_out)
{
    pthread_t thread;
    bool first = false, second = false;
    certs_usual();
    certs_make(&(cert_t){.name = "first", .by = "ca", .san = "DNS:first.example,IP:127.0.0.1"});
    certs_make(&(cert_t){.name = "second", .by = "ca", .san = "DNS:second.example,IP:127.0.0.1"});
    copy(certs_file("first", "crt"), certs_file("its", "crt"));
    copy(certs_file("first", "key"), certs_file("its", "key"));
    certs_use("its", "ca");
    serve();
    certs_use("node", "ca");
    CHECK_OK(opens(&client));
    CHECK(!pthread_create(&thread, NULL, writes, NULL));
    double most = test_now() + LONG;
    for (double least = test_now() + 1.5; test_now() < least || ((!first || !second) && test_now() < most);) {
        weft_ep_t *ep;
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        CHECK_OK(call(&ep));
        CHECK_OK(weft_ep_get_info(ep, &info));
        first = first || !strcmp(info.identity, "first.example");
        second = second || !strcmp(info.identity, "second.example");
        CHECK_OK(weft_ep_close(ep, NULL));
        usleep(5000);
    }
    atomic_store(&enough, true);
    CHECK(!pthread_join(thread, NULL));
    CHECK(first && second);
    end();
}

static void *opens_and_closes(void *user)
{
    (void)user;
    for (int i = 0; i < 40; i++) {
        weft_runtime_t *rt;
        weft_listener_t *l;
        CHECK_OK(opens(&rt));
        CHECK_OK(weft_listen(rt, "tls://127.0.0.1:0", NULL, &l));
        usleep(i % 8 * 1000);
        CHECK_OK(weft_runtime_close(rt));
    }
    return NULL;
}

TEST(runtimes_close_while_another_looks_at_their_files)
{
    pthread_t threads[2];
    weft_ep_t *ep;
    certs_usual();
    copy(certs_file("ca", "crt"), certs_file("their", "crt"));
    certs_use("node", "their");
    serve();
    CHECK_OK(opens(&client));
    CHECK_OK(call(&ep));
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&threads[i], NULL, opens_and_closes, NULL));
    for (int i = 0; i < 6; i++) {
        copy(certs_file("ca", "crt"), certs_file("fresh", "crt"));
        CHECK(!rename(certs_file("fresh", "crt"), certs_file("their", "crt")));
        usleep(100000);
    }
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_join(threads[i], NULL));
    CHECK(is_up(ep));
    end();
}

#ifndef __SANITIZE_THREAD__ /* which allows no threads in a child of threads */
TEST(a_child_of_a_process_with_tls_has_tls_of_its_own)
{
    weft_ep_t *ep;
    int status;
    certs_usual();
    copy(certs_file("ca", "crt"), certs_file("their", "crt"));
    certs_use("node", "their");
    serve();
    CHECK_OK(opens(&client));
    CHECK_OK(call(&ep));
    weft_log_set_level(WEFT_LOG_NONE);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        alarm(LONG);
        serve();
        CHECK_OK(opens(&client));
        CHECK_OK(call(&ep));
        certs_make(&(cert_t){.name = "other", .ca = true});
        CHECK(!rename(certs_file("other", "crt"), certs_file("their", "crt")));
        TEST_UNTIL(!is_up(ep), LONG); /* its own timer sees it, too */
        end();
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    TEST_UNTIL(!is_up(ep), LONG);
    end();
}
#endif
