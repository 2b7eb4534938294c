/* tests/unit/fabric_guard.c - what a runtime proves with over TLS (fabric/tls.h), made ready by two threads at once, as two
 * shards of a listener do with their first peers: it is made once, and nothing of it is looked at when it is gone.
 *
 * ctest: openssl label=thread */
#include <pthread.h>
#include <weft/config.h>

#include "certs.h"
#include "fabric/fabric.h"
#include "fabric/tls.h"
#include "test.h"

enum { ROUNDS = 100 };
static pthread_barrier_t gate;
static wefti_guard_t *guard;

static void *makes_ready(void *user)
{
    (void)user;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&gate);
        CHECK_OK(wefti_guard_ready(guard));
        pthread_barrier_wait(&gate);
    }
    return NULL;
}

TEST(two_threads_make_it_ready_once)
{
    wefti_config_t config = {0};
    pthread_t thread;
    certs_usual();
    char cert[128], key[128], ca[128];
    snprintf(cert, sizeof cert, "%s", certs_file("node", "crt"));
    snprintf(key, sizeof key, "%s", certs_file("node", "key"));
    snprintf(ca, sizeof ca, "%s", certs_file("ca", "crt"));
    config.tls_cert = cert;
    config.tls_key = key;
    config.tls_ca = ca;
    CHECK(!pthread_barrier_init(&gate, NULL, 2) && !pthread_create(&thread, NULL, makes_ready, NULL));
    for (int i = 0; i < ROUNDS; i++) {
        guard = wefti_guard_new(&config);
        CHECK(guard);
        pthread_barrier_wait(&gate);
        CHECK_OK(wefti_guard_ready(guard));
        pthread_barrier_wait(&gate);
        wefti_stream_t *s;
        CHECK_OK(wefti_stream_wire(guard, WEFTI_SIDE_LISTENER, NULL, 0, &s));
        wefti_stream_free(s);
        wefti_guard_free(guard);
        (void)wefti_guards_look(); /* at all of the process: there is none */
    }
    CHECK(!pthread_join(thread, NULL));
    pthread_barrier_destroy(&gate);
}

TEST(one_that_could_not_be_made_ready_can_be_later)
{
    wefti_config_t config = {0};
    char cert[128], key[128], none[128];
    certs_usual();
    snprintf(cert, sizeof cert, "%s", certs_file("node", "crt"));
    snprintf(key, sizeof key, "%s", certs_file("node", "key"));
    snprintf(none, sizeof none, "%s", certs_file("later", "crt"));
    config.tls_cert = cert;
    config.tls_key = key;
    config.tls_ca = none;
    guard = wefti_guard_new(&config);
    CHECK(guard);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(wefti_guard_ready(guard), WEFT_ERR_INVALID);
        CHECK(strstr(weft_last_error(), none));
    }
    CHECK(!rename(certs_file("ca", "crt"), none));
    CHECK_OK(wefti_guard_ready(guard));
    CHECK_OK(wefti_guard_ready(guard));
    wefti_guard_free(guard);
}
