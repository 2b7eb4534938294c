/* A registry in a real etcd: enter, find, change, watch and leave, from several processes; a thousand entries; strange values.
 * ctest: timeout=300 label=thread waits */
#include <sys/prctl.h>

#include "etcds.h"
#include "places.h"
#include "registry/state.h"
#include "test.h"

TEST(what_is_entered_is_found_changed_watched_and_leaves)
{
    static seen_t s;
    etcd_server_t etcd;
    place_t a, b;
    weft_watch_t *w;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    place_open(&a, etcd.uri, WEFT_PROGRESS_CALLER);
    place_open(&b, etcd.uri, WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_count(&b, NULL), 0);
    CHECK_OK(weft_registry_watch(b.registry, NULL, seen_change, &s, &w));
    CHECK_OK(place_enter(&a, "s", "x", 1));
    CHECK_EQ(place_count(&b, NULL), 1); /* at once: a find asks */
    CHECK_EQ(place_count(&b, "s"), 1);
    CHECK_EQ(place_count(&b, "t"), 0);
    PLACE_UNTIL(&b, s.came == 1 && s.load == 1, 20);
    CHECK_OK(place_enter(&a, "s", "x", 7));
    PLACE_UNTIL(&b, s.changed == 1 && s.load == 7, 20);
    CHECK_OK(place_enter(&b, "t", "y", 0));
    PLACE_UNTIL(&b, s.there == 2, 20);
    CHECK_EQ(place_count(&a, NULL), 2);
    CHECK_OK(place_leave(&a, "s", "x"));
    CHECK_EQ(place_leave(&a, "s", "x"), WEFT_ERR_NOTFOUND);
    CHECK_EQ(place_count(&b, NULL), 1);
    PLACE_UNTIL(&b, s.went == 1 && s.there == 1, 20);
    CHECK_OK(place_enter(&a, "s", "x", 2));
    PLACE_UNTIL(&b, s.there == 2, 20);
    place_close(&a); /* takes what is a's away */
    PLACE_UNTIL(&b, s.there == 1, 20);
    CHECK_EQ(place_count(&b, NULL), 1);
    CHECK_EQ(weft_registry_state(b.registry), WEFT_OK);
    place_close(&b);
    place_open(&a, etcd.uri, WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_count(&a, NULL), 0);
    place_close(&a);
    etcd_end(&etcd);
}

TEST(the_longest_entry_comes_back_as_it_was)
{
    static uint8_t data[REG_DATA_MAX];
    etcd_server_t etcd;
    place_t a;
    char name[REG_NAME_MAX + 1], address[REG_ADDRESS_MAX + 1];
    weft_entry_t e = WEFT_ENTRY_INIT;
    weft_op_t op = WEFT_OP_INIT;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    place_open(&a, etcd.uri, WEFT_PROGRESS_CALLER);
    memset(name, 'n', REG_NAME_MAX);
    memset(address, 'a', REG_ADDRESS_MAX);
    name[REG_NAME_MAX] = address[REG_ADDRESS_MAX] = 0;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 31 >> 3);
    e.service = e.instance = name;
    e.address = address;
    e.load = REG_LOAD_MAX;
    e.data = data;
    e.data_len = sizeof data;
    CHECK_OK(weft_registry_enter(a.registry, &e, &op));
    CHECK_OK(place_wait(&op));
    reg_found_t *f = wefti_reg_found_new();
    void *backend;
    CHECK_OK(wefti_reg_etcd.open(a.registry, etcd.uri + 7, &backend));
    CHECK_OK(wefti_reg_etcd.list(backend, f));
    CHECK_EQ(f->n, 1);
    CHECK_STR(f->at[0]->instance, name);
    CHECK_STR(f->at[0]->address, address);
    CHECK_EQ(f->at[0]->data_len, sizeof data);
    CHECK(!memcmp(f->at[0]->data, data, sizeof data));
    wefti_reg_found_unref(f);
    wefti_reg_etcd.close(backend);
    place_close(&a);
    etcd_end(&etcd);
}

TEST(of_two_with_the_same_instance_the_second_is_refused)
{
    etcd_server_t etcd;
    place_t a, b;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    place_open(&a, etcd.uri, WEFT_PROGRESS_CALLER);
    place_open(&b, etcd.uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_EQ(place_enter(&b, "s", "x", 0), WEFT_ERR_STATE);
    CHECK_EQ(place_leave(&b, "s", "x"), WEFT_ERR_NOTFOUND);
    CHECK_OK(place_enter(&a, "s", "x", 5)); /* still a's */
    CHECK_EQ(place_count(&b, NULL), 1);
    CHECK_OK(place_enter(&b, "t", "x", 0)); /* of another service */
    CHECK_OK(place_leave(&a, "s", "x"));
    CHECK_OK(place_enter(&b, "s", "x", 0));
    CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_STATE);
    place_close(&b);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    place_close(&a);
    etcd_end(&etcd);
}

TEST(two_processes_see_each_other)
{
    static seen_t s;
    etcd_server_t etcd;
    place_t a;
    weft_watch_t *w;
    int to[2], from[2];
    char c;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    CHECK(!pipe(to) && !pipe(from));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        place_open(&a, etcd.uri, WEFT_PROGRESS_CALLER);
        CHECK_OK(weft_registry_watch(a.registry, "parent", seen_change, &s, &w));
        CHECK_OK(place_enter(&a, "child", "c", 0));
        PLACE_UNTIL(&a, s.there == 1, 20);
        CHECK_EQ(write(from[1], "1", 1), 1);
        PLACE_UNTIL(&a, s.changed == 1, 20);
        CHECK_EQ(write(from[1], "2", 1), 1);
        CHECK_EQ(read(to[0], &c, 1), 1);
        place_close(&a);
        exit(0);
    }
    place_open(&a, etcd.uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_watch(a.registry, "child", seen_change, &s, &w));
    CHECK_OK(place_enter(&a, "parent", "p", 0));
    PLACE_UNTIL(&a, s.there == 1, 20);
    CHECK_EQ(read(from[0], &c, 1), 1);
    CHECK_OK(place_enter(&a, "parent", "p", 3));
    CHECK_EQ(read(from[0], &c, 1), 1);
    CHECK_EQ(place_count(&a, NULL), 2);
    CHECK_EQ(write(to[1], "x", 1), 1);
    PLACE_UNTIL(&a, s.there == 0, 20);
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    place_close(&a);
    etcd_end(&etcd);
}

TEST(a_thousand_entries_are_found_watched_and_gone_at_once)
{
    enum { ALL = 1000 };
    static weft_op_t ops[ALL];
    static seen_t s;
    etcd_server_t etcd;
    place_t a, b;
    weft_watch_t *w;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    place_open(&a, etcd.uri, WEFT_PROGRESS_CALLER);
    place_open(&b, etcd.uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_watch(b.registry, NULL, seen_change, &s, &w));
    for (int i = 0; i < ALL; i++) {
        char name[16];
        weft_entry_t e = WEFT_ENTRY_INIT;
        snprintf(name, sizeof name, "i%d", i);
        e.service = i % 2 ? "odd" : "even";
        e.instance = name;
        e.address = "tcp://127.0.0.1:7000";
        e.data = "signatures";
        e.data_len = 10;
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_registry_enter(a.registry, &e, &ops[i]));
    }
    PLACE_UNTIL(&a, weft_op_done(&ops[ALL - 1]), 50);
    for (int i = 0; i < ALL; i++)
        CHECK_OK(place_wait(&ops[i]));
    CHECK_EQ(place_count(&a, NULL), ALL);
    CHECK_EQ(place_count(&a, "odd"), ALL / 2);
    PLACE_UNTIL(&b, s.there == ALL, 20);
    CHECK_EQ(s.changed, 0);
    place_close(&a);
    CHECK_EQ(place_count(&b, NULL), 0);
    PLACE_UNTIL(&b, s.there == 0, 20);
    CHECK_EQ(s.came, ALL);
    place_close(&b);
    etcd_end(&etcd);
}

TEST(what_others_put_under_our_keys_is_not_believed)
{
    static uint8_t junk[1000000];
    static seen_t s;
    etcd_server_t etcd;
    place_t a;
    weft_watch_t *w;
    char key[300];
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    etcd_put(&etcd, "/weft/s/text", "hello", 5);
    etcd_put(&etcd, "/weft/s/none", "", 0);
    etcd_put(&etcd, "/weft/s/long", junk, sizeof junk);
    etcd_put(&etcd, "/weft/s/long2", junk, sizeof junk);
    etcd_put(&etcd, "/weft/s/long3", junk, sizeof junk);
    etcd_put(&etcd, "/weft/s/long4", junk, sizeof junk); /* together longer than an answer may be */
    etcd_put(&etcd, "/weft/", "x", 1);
    etcd_put(&etcd, "/weft/s", "x", 1);
    etcd_put(&etcd, "/weft/s/", "x", 1);
    etcd_put(&etcd, "/weft//i", "x", 1);
    etcd_put(&etcd, "/weft/s/i/j", "x", 1);
    etcd_put(&etcd, "/weft/s/\x01\xff", "x", 1);
    etcd_put(&etcd, "/other/s/i", "x", 1);
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    memcpy(key, "/weft/", 6);
    etcd_put(&etcd, key, "x", 1);
    place_open(&a, etcd.uri, WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_count(&a, NULL), 0);
    CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &w));
    CHECK_EQ(place_enter(&a, "s", "text", 0), WEFT_ERR_STATE);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_OK(place_enter(&a, "z", "x2", 0)); /* on a page behind all that */
    PLACE_UNTIL(&a, s.there == 2, 20);
    CHECK_EQ(place_count(&a, NULL), 2);
    /* while it is watched, too: an entry that someone spoils is gone, and one that has another's bytes */
    weft_entry_t e = WEFT_ENTRY_INIT;
    reg_entry_t *entry;
    uint8_t bytes[1024];
    e.service = "s";
    e.address = "tcp://127.0.0.1:7000";
    CHECK_OK(wefti_reg_entry_new(&e, "other", &entry));
    size_t n = wefti_reg_entry_encode(entry, junk, sizeof junk);
    CHECK(n < sizeof bytes);
    memcpy(bytes, junk, n);
    wefti_reg_entry_unref(entry);
    etcd_put(&etcd, "/weft/s/x", bytes, n);
    etcd_put(&etcd, "/weft/s/again", bytes, n);
    PLACE_UNTIL(&a, s.there == 1, 20);
    etcd_delete(&etcd, "/weft/s/x"); /* and it comes back, since its process lives */
    PLACE_UNTIL(&a, s.there == 2, 20);
    CHECK_EQ(weft_registry_state(a.registry), WEFT_OK);
    place_close(&a);
    etcd_end(&etcd);
}

TEST(by_tls_whose_certificate_is_believed_and_no_other)
{
    static seen_t s;
    etcd_server_t etcd;
    place_t a, b;
    weft_watch_t *w;
    char ca[96];
    ETCD_OR_SKIP();
    if (!etcd_new_tls(&etcd))
        SKIP("there is no openssl here to make a certificate");
    place_open(&b, etcd.uri, WEFT_PROGRESS_CALLER); /* who believes in the system's only */
    CHECK_EQ(place_count(&b, NULL), WEFT_ERR_UNREACHABLE);
    snprintf(ca, sizeof ca, "%s/cert.pem", etcd.dir);
    CHECK(!setenv("WEFT_REGISTRY_CA", ca, 1));
    place_open(&a, etcd.uri, WEFT_PROGRESS_CALLER);
    PLACE_UNTIL(&a, place_count(&a, NULL) == 0, 20);
    CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &w));
    CHECK_OK(place_enter(&a, "s", "x", 0));
    PLACE_UNTIL(&a, s.there == 1, 20);
    CHECK_OK(place_enter(&a, "s", "x", 1));
    PLACE_UNTIL(&a, s.changed == 1, 20);
    usleep(100000);
    CHECK_EQ(place_count(&b, NULL), WEFT_ERR_UNREACHABLE);
    place_close(&b);
    place_close(&a);
    etcd_end(&etcd);
}

TEST(addresses_that_cannot_be_are_refused_with_a_sentence)
{
    const char *wrong[] = {"etcd://",      "etcd://:2379",    "etcd://host:0",    "etcd://host:99999",
                           "etcd://a b",   "etcd://u:p@host", "etcd://host/path", "etcd://host,",
                           "etcd://,host", "etcd://::1",      "etcd://[::1",      "etcd://host?x",
                           "etcd://host#", "etcd://host:",    "etcd+https://",    "etcd://a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a"};
    const char *right[] = {"etcd://localhost",  "etcd://127.0.0.1:1",   "etcd://[::1]",
                           "etcd://[::1]:2379", "ETCD://a,b:1,[::1]:3", "etcd+https://localhost:1"};
    weft_runtime_t *rt;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_registry_t *r;
    opts.transports = "shm";
    CHECK_OK(weft_runtime_open(&opts, &rt));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        weft_status_t st = weft_registry_open(rt, wrong[i], NULL, &r);
        if (st == WEFT_ERR_UNSUPPORTED)
            SKIP("there is no libcurl here");
        if (st != WEFT_ERR_INVALID)
            FAIL("%s gives %s", wrong[i], weft_status_name(st));
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_registry_open(rt, right[i], NULL, &r));
        CHECK_OK(weft_registry_close(r, &op));
        CHECK_OK(place_wait(&op));
    }
    weft_registry_opts_t lease = WEFT_REGISTRY_OPTS_INIT;
    lease.lease_ns = UINT64_MAX;
    CHECK_EQ(weft_registry_open(rt, "etcd://localhost", &lease, &r), WEFT_ERR_INVALID);
    CHECK_OK(weft_runtime_close(rt));
}
