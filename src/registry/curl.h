/* registry/curl.h - what is used of libcurl's binary interface, which has not changed since 7.16 (2006): numbers, layouts, functions.
 *
 * Written down here so that neither building nor running asks for it, as with CUDA. tests/unit/registry_etcd.c compares it with libcurl's own
 * header where that is installed. */
#ifndef WEFTI_REGISTRY_CURL_H
#define WEFTI_REGISTRY_CURL_H

#include <sys/socket.h>

/* numbers of options are of one kind for each type of value, in thousands of ten */
#define CURL_NUMBERS(X) \
    X(CURLOPT_WRITEDATA, 10001) \
    X(CURLOPT_URL, 10002) \
    X(CURLOPT_PROXY, 10004) \
    X(CURLOPT_ERRORBUFFER, 10010) \
    X(CURLOPT_HTTPHEADER, 10023) \
    X(CURLOPT_HEADERDATA, 10029) \
    X(CURLOPT_POST, 47) \
    X(CURLOPT_POSTFIELDSIZE, 60) \
    X(CURLOPT_CAINFO, 10065) \
    X(CURLOPT_HEADERFUNCTION, 20079) \
    X(CURLOPT_HTTP_VERSION, 84) \
    X(CURLOPT_NOSIGNAL, 99) \
    X(CURLOPT_WRITEFUNCTION, 20011) \
    X(CURLOPT_OPENSOCKETFUNCTION, 20163) \
    X(CURLOPT_OPENSOCKETDATA, 10164) \
    X(CURLOPT_COPYPOSTFIELDS, 10165) \
    X(CURLOPT_PROTOCOLS, 181) \
    X(CURLOPT_TCP_KEEPALIVE, 213) \
    X(CURLOPT_QUICK_EXIT, 322) \
    X(CURLINFO_RESPONSE_CODE, 0x200002) \
    X(CURLINFO_NUM_CONNECTS, 0x20001a) \
    X(CURL_HTTP_VERSION_1_1, 2) \
    X(CURLPROTO_HTTP, 1) \
    X(CURLPROTO_HTTPS, 2) \
    X(CURL_GLOBAL_DEFAULT, 3) \
    X(CURLE_OK, 0) \
    X(CURLE_OUT_OF_MEMORY, 27) \
    X(CURL_ERROR_SIZE, 256) \
    X(CURLMSG_DONE, 1) \
    X(CURL_WAIT_POLLIN, 1) \
    X(CURL_SOCKET_BAD, -1)

enum {
#define CURL_NUMBER(name, value) WEFT_##name = (value),
    CURL_NUMBERS(CURL_NUMBER)
#undef CURL_NUMBER
};

typedef struct curl_message {
    int msg;
    void *easy;
    union {
        void *whatever;
        int result;
    } data;
} curl_message_t;

typedef struct curl_fd {
    int fd;
    short events, revents;
} curl_fd_t;

typedef struct curl_address {
    int family, type, protocol;
    unsigned len;
    struct sockaddr addr;
} curl_address_t;

/*    result           member          symbol                       arguments */
#define CURL_CALLS(X) \
    X(int, global_init, "curl_global_init", (long flags)) \
    X(void *, easy_init, "curl_easy_init", (void)) \
    X(int, easy_setopt, "curl_easy_setopt", (void *easy, int option, ...)) \
    X(int, easy_getinfo, "curl_easy_getinfo", (void *easy, int info, ...)) \
    X(void, easy_cleanup, "curl_easy_cleanup", (void *easy)) \
    X(const char *, easy_strerror, "curl_easy_strerror", (int code)) \
    X(void *, slist_append, "curl_slist_append", (void *list, const char *text)) \
    X(void, slist_free_all, "curl_slist_free_all", (void *list)) \
    X(void *, multi_init, "curl_multi_init", (void)) \
    X(int, multi_add, "curl_multi_add_handle", (void *multi, void *easy)) \
    X(int, multi_remove, "curl_multi_remove_handle", (void *multi, void *easy)) \
    X(int, multi_perform, "curl_multi_perform", (void *multi, int *running)) \
    X(int, multi_poll, "curl_multi_poll", (void *multi, curl_fd_t *extra, unsigned n, int ms, int *fds)) \
    X(curl_message_t *, multi_info, "curl_multi_info_read", (void *multi, int *left)) \
    X(int, multi_cleanup, "curl_multi_cleanup", (void *multi))

#endif
