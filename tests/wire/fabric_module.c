/* tests/wire/fabric_module.c - libweft_ucx.so: when it is loaded, and what is said where it is missing, does not load, or is of
 * another version. */
#include "test.h"

#include <sys/stat.h>
#include <weft/weft.h>

#include "base/alloc.h"
#include "fabric/module.h"
#include "pair.h"

static char scratch[64];

/* An empty folder, in which the module is looked for. */
static void look_in_scratch(void)
{
    snprintf(scratch, sizeof scratch, "/tmp/weft-module-XXXXXX");
    CHECK(mkdtemp(scratch));
    CHECK(!setenv("WEFT_MODULE_PATH", scratch, 1));
}

static void leave_scratch(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/" WEFTI_MODULE_FILE, scratch);
    unlink(path);
    CHECK(!rmdir(scratch));
}

static bool is_loaded(const char *what)
{
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        found = found || strstr(line, what);
    fclose(maps);
    return found;
}

static weft_status_t open_with(const char *transports)
{
    weft_runtime_t *rt;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.transports = transports;
    weft_status_t st = weft_runtime_open(&opts, &rt);
    if (!st)
        CHECK_OK(weft_runtime_close(rt));
    return st;
}

static bool has_rdma(void)
{
    return !system("ls /sys/class/infiniband/* >/dev/null 2>&1");
}

static void the_module_is_here(void)
{
    const wefti_module_t *m;
    pid_t pid = fork(); /* where it is loaded and gone again */
    int status;
    if (!pid)
        _exit(wefti_module_load("", &m) != WEFT_OK);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (status)
        SKIP("this build has no " WEFTI_MODULE_FILE);
}

TEST(without_an_rdma_device_nothing_is_loaded)
{
    if (has_rdma())
        SKIP("there is an RDMA device");
    CHECK_OK(open_with("all"));
    CHECK_OK(open_with("shm,tcp"));
    CHECK(!is_loaded("libuc"));
    CHECK(!is_loaded(WEFTI_MODULE_FILE));
}

TEST(asking_for_ucx_by_name_loads_it)
{
    the_module_is_here();
    CHECK_OK(open_with("ucx"));
    CHECK(is_loaded("libucp"));
    CHECK(is_loaded(WEFTI_MODULE_FILE));
}

static void exchange(const pair_way_t *way)
{
    pair_t p;
    weft_op_t send = {0}, recv = {0};
    char in[8] = "";
    pair_open(&p, way, NULL);
    CHECK_OK(weft_msg_recv(p.ep[0], in, sizeof in, 1, UINT64_MAX, &recv));
    CHECK_OK(weft_msg_send(p.ep[1], "hello", 6, 1, &send));
    CHECK_OK(pair_wait(&p, &recv, 10));
    CHECK_OK(pair_wait(&p, &send, 10));
    CHECK_STR(in, "hello");
    pair_close(&p);
}

TEST(without_the_module_shm_and_tcp_work_and_ucx_by_name_says_what_to_install)
{
    static const char *const names[] = {"ucx", "ucx_tcp", "rc", "shm,ud"};
    look_in_scratch();
    exchange(&(pair_way_t){"shm", WEFT_PROGRESS_CALLER});
    exchange(&(pair_way_t){"tcp", WEFT_PROGRESS_CALLER});
    exchange(&(pair_way_t){"all", WEFT_PROGRESS_CALLER});
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK_EQ(open_with(names[i]), WEFT_ERR_UNSUPPORTED);
        CHECK(strstr(weft_last_error(), WEFTI_MODULE_FILE) && strstr(weft_last_error(), "install"));
        CHECK(strstr(weft_last_error(), scratch) && strstr(weft_last_error(), "WEFT_MODULE_PATH"));
    }
    leave_scratch();
}

/* A copy of the module in `scratch`, with each `what` in it replaced by something as long. */
static void copy_module(const char *what, const char *instead)
{
    static char bytes[8 << 20];
    char path[128];
    FILE *from = fopen(WEFTI_MODULE_FILE, "rb"); /* beside this program, where ctest starts it */
    if (!from)
        SKIP(WEFTI_MODULE_FILE " is not in the folder of this test");
    size_t n = fread(bytes, 1, sizeof bytes, from), len = strlen(what) + 1;
    fclose(from);
    bool found = false;
    for (size_t i = 0; i + len < n; i++) {
        if (memcmp(bytes + i, what, len))
            continue;
        memcpy(bytes + i, instead, len);
        found = true;
    }
    CHECK(found);
    snprintf(path, sizeof path, "%s/" WEFTI_MODULE_FILE, scratch);
    FILE *to = fopen(path, "wb");
    CHECK(to && fwrite(bytes, 1, n, to) == n && !fclose(to));
}

TEST(without_ucx_itself_the_sentence_names_the_library_and_its_package)
{
    look_in_scratch();
    copy_module("libucp.so.0", "libucX.so.0");
    CHECK_EQ(open_with("ucx"), WEFT_ERR_UNSUPPORTED);
    CHECK(strstr(weft_last_error(), "libucX.so.0") && strstr(weft_last_error(), "libucx0"));
    CHECK_OK(open_with("shm,tcp"));
    leave_scratch();
}

TEST(a_module_of_another_version_is_refused)
{
    char want[32];
    CHECK(!setenv("WEFT_MODULE_PATH", "../old_module", 1)); /* beside the folder of this test: tests/CMakeLists.txt builds it */
    if (access("../old_module/" WEFTI_MODULE_FILE, F_OK))
        SKIP("started in another folder than ctest does");
    CHECK_EQ(open_with("ucx"), WEFT_ERR_UNSUPPORTED);
    snprintf(want, sizeof want, "%u.%u", WEFTI_MODULE_VERSION, WEFTI_MODULE_SIZE);
    CHECK(strstr(weft_last_error(), "77.4") && strstr(weft_last_error(), want) && strstr(weft_last_error(), "one build"));
}

TEST(what_was_missing_is_found_once_it_is_there)
{
    the_module_is_here();
    look_in_scratch();
    CHECK_EQ(open_with("ucx"), WEFT_ERR_UNSUPPORTED);
    copy_module("libucp.so.0", "libucp.so.0");
    CHECK_OK(open_with("ucx"));
    leave_scratch();
}

static int no_memory(size_t n)
{
    (void)n;
    return 1;
}

TEST(memory_that_runs_out_runs_out_in_the_module_too)
{
    the_module_is_here();
    const wefti_module_t *m;
    wefti_fabric_t f = {0};
    wefti_transport_t *t = NULL;
    wefti_ucx_params_t params = {.tls = ""};
    CHECK_OK(wefti_module_load("", &m));
    wefti_alloc_fails = no_memory;
    CHECK_EQ(m->open(&f, &params, &t), WEFT_ERR_NOMEM);
    wefti_alloc_fails = NULL;
    CHECK(strstr(weft_last_error(), "memory") && !t);
    CHECK_OK(m->open(&f, &params, &t));
    t->ops->close(t);
}

static void mine(int number)
{
    (void)number;
}

TEST(loading_it_leaves_the_programs_own_signal_handlers_in_place)
{
    static const int signals[] = {SIGSEGV, SIGFPE, SIGHUP};
    the_module_is_here();
    if (getenv("UCX_ERROR_SIGNALS") || getenv("UCX_HANDLE_ERRORS") || getenv("UCX_DEBUG_SIGNO"))
        SKIP("the environment asks UCX for its handlers");
    struct sigaction set = {.sa_handler = mine}, now;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        CHECK(!sigaction(signals[i], &set, NULL));
    CHECK_OK(open_with("ucx"));
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        CHECK(!sigaction(signals[i], NULL, &now));
        CHECK(now.sa_handler == mine);
    }
}
