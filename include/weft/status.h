/* weft/status.h - what a call or an operation came to.
 *
 * One list gives the enum, the names and the sentences. Values are stable: new ones are appended.
 * Zero is success; every failure is negative, so `if (st)` and `if (st < 0)` both read well. */
#ifndef WEFT_STATUS_H
#define WEFT_STATUS_H

#if defined(__GNUC__) || defined(__clang__)
#define WEFT_API __attribute__((visibility("default")))
#define WEFT_MUST_CHECK __attribute__((warn_unused_result))
#define WEFT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define WEFT_API
#define WEFT_MUST_CHECK
#define WEFT_PRINTF(fmt, args)
#endif

/* Behind the *_INIT macros: a struct that is zero, and one that is zero but for its first field, its size. Each compiles
 * without a warning as C and as C++. */
#ifdef __cplusplus
template <typename T>
inline T weft_init_sized()
{
    T t = T();
    t.size = sizeof t;
    return t;
}
#define WEFT_ZERO(type) type()
#define WEFT_INIT(type) weft_init_sized<type>()
extern "C" {
#else
#define WEFT_ZERO(type) {0}
#define WEFT_INIT(type) {.size = sizeof(type)}
#endif

/*        name            value  sentence */
#define WEFT_STATUS_LIST(X) \
    X(WEFT_OK,              0,  "success") \
    X(WEFT_ERR_INVALID,    -1,  "an argument is not valid") \
    X(WEFT_ERR_NOMEM,      -2,  "out of memory") \
    X(WEFT_ERR_CANCELLED,  -3,  "the operation was cancelled") \
    X(WEFT_ERR_TIMEOUT,    -4,  "the deadline passed") \
    X(WEFT_ERR_PEER,       -5,  "the peer is lost: it died, stopped answering, or the network to it is down") \
    X(WEFT_ERR_CLOSED,     -6,  "the endpoint, listener or runtime is closed") \
    X(WEFT_ERR_REFUSED,    -7,  "the peer refused the connection") \
    X(WEFT_ERR_UNREACHABLE,-8,  "no way to reach the peer") \
    X(WEFT_ERR_AUTH,       -9,  "authentication failed: the two need the same key, or certificates that the other accepts; or " \
                                "a region key is not genuine") \
    X(WEFT_ERR_VERSION,    -10, "the peer speaks a protocol version this library does not") \
    X(WEFT_ERR_PROTOCOL,   -11, "the peer sent bytes that break the protocol") \
    X(WEFT_ERR_TRUNCATED,  -12, "the message is longer than the buffer; it was discarded and nothing was written") \
    X(WEFT_ERR_AGAIN,      -13, "it would have to wait, and the caller asked not to") \
    X(WEFT_ERR_LIMIT,      -14, "a limit was reached: file descriptors, endpoints, or a configured bound") \
    X(WEFT_ERR_FORKED,     -15, "this process was forked after the runtime was opened; open a new runtime in the child") \
    X(WEFT_ERR_STATE,      -16, "the call is not allowed here: from inside a callback, or on an object that is in use") \
    X(WEFT_ERR_UNSUPPORTED,-17, "this build, machine or transport cannot do that") \
    X(WEFT_ERR_ADDRESS,    -18, "the address cannot be used: in use, not of this machine, or its name has no address") \
    X(WEFT_ERR_NOTFOUND,   -19, "no such thing: a name, an id whose object is gone, or a message that is not there") \
    X(WEFT_ERR_SYSTEM,     -20, "the operating system, CUDA or UCX failed; the log has its words") \
    X(WEFT_ERR_REJECTED,   -21, "the peer rejected the message or the request; the operation has its reason") \
    X(WEFT_ERR_RANGE,      -22, "outside of the memory that was exposed, or of the part the region's key names; nothing was " \
                                "touched") \
    X(WEFT_ERR_RIGHTS,     -23, "the region's key does not give that right; nothing was touched") \
    X(WEFT_ERR_STALE,      -24, "it is no longer valid: the region was revoked or freed, or the time of its key is over") \
    X(WEFT_ERR_CORRUPT,    -25, "the bytes do not match their checksum") \
    X(WEFT_ERR_CALL,       -26, "the function or its server answered with a failure; the reply has its code and message") \
    X(WEFT_ERR_PENDING,    -27, "the wait ran out of time; the operation is still under way") \
    X(WEFT_ERR_DONE,       -28, "the operation is complete already") \
    X(WEFT_ERR_PERMISSION, -29, "the policy does not allow that")

typedef enum weft_status {
#define WEFT_STATUS_ENUM(name, value, text) name = (value),
    WEFT_STATUS_LIST(WEFT_STATUS_ENUM)
#undef WEFT_STATUS_ENUM
    WEFT_STATUS_FORCE_INT = 0x7fffffff
} weft_status_t;

/* The name ("WEFT_ERR_PEER") and the sentence of a status; "WEFT_ERR_?" and "unknown status" for a value not in the
 * list. Never NULL, static storage, any thread. */
WEFT_API const char *weft_status_name(weft_status_t status);
WEFT_API const char *weft_status_text(weft_status_t status);

/* The detail of the last call of this thread that returned an error: which argument, which value, what the system said; of a
 * wait that returned the status of its operation, what weft_op_error() says. Empty string when there is none. Valid until this
 * thread's next call into the library. */
WEFT_API const char *weft_last_error(void);
/* What that call returned. Not every error has a detail: one of another status is of an earlier call. WEFT_OK when there is
 * none. */
WEFT_API weft_status_t weft_last_error_status(void);

/* For libraries that return statuses of their own: record the sentence that weft_last_error() gives to this thread, and return
 * `status`. At most 511 bytes; control characters become '?'. */
WEFT_API WEFT_PRINTF(2, 3) weft_status_t weft_fail(weft_status_t status, const char *fmt, ...);

#ifdef __cplusplus
}
#endif
#endif
