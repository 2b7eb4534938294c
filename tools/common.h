/* tools/common.h - what the commands share: numbers, sentences, terminals, JSON, and options.h. */
#ifndef WEFT_TOOLS_COMMON_H
#define WEFT_TOOLS_COMMON_H

#include <weft/status.h>

#include "options.h"

/* Exit statuses of every command. */
enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* The name errors begin with: "weft perf". Set once by main(). */
extern const char *tool_name;

/* One sentence to stderr, with the name in front and a newline behind. */
void tool_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same for a call that failed at once: `what`, the status's sentence, and the library's detail if there is one. */
void tool_error_status(weft_status_t st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The exit status for what failed with this because of the command line: TOOL_USAGE if a value of it was not understood. */
static inline int tool_exit_status(weft_status_t st)
{
    return !st ? TOOL_OK : st == WEFT_ERR_INVALID ? TOOL_USAGE : TOOL_FAILED;
}
/* Did a connection fail with this because no server is there, or it was lost? */
bool tool_no_server(weft_status_t st);
/* What to do about a connection that came to this, to end such a sentence with: "; ...", or "". */
const char *tool_advice(weft_status_t st);

/* --- numbers --------------------------------------------------------------------------------------------- */

/* Whole string or false. "64", "4k", "1M", "2G" (powers of 1024). */
bool tool_parse_size(const char *text, uint64_t *out);
/* "5s", "50ms", "10us", "100ns"; a bare number is seconds; fractions are allowed. */
bool tool_parse_time(const char *text, uint64_t *ns_out);
/* A plain decimal between min and max. */
bool tool_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *out);

/* "8", "4K", "1M": exact, or plain digits where it would not be. Returns buf. */
const char *tool_size_text(uint64_t size, char *buf, size_t cap);

/* --- limits ---------------------------------------------------------------------------------------------- */

/* As many file descriptors as the system allows: a thousand endpoints need more than the usual soft limit. */
void tool_raise_file_limit(void);

/* --- other programs --------------------------------------------------------------------------------------- */

/* The whole path of an interpreter, by its name in PATH or by a path; yours to free. NULL: there is none, or no memory. */
char *tool_find_python(const char *name);

/* --- words ----------------------------------------------------------------------------------------------- */

/* The nearest of n names to a word that is none of them, or NULL if none is near. */
const char *tool_nearest(const char *word, const char *const *names, size_t n);

/* Bytes of the character that s begins with, in UTF-8; 0 if it begins with none, or at the end. */
size_t tool_utf8_len(const char *s);

/* Bytes of the character that s begins with, n of them left, if it may go to a terminal as it is (newlines and tabs too, with
 * `lines`); 0 if not. */
size_t tool_harmless(const char *s, size_t n, bool lines);
/* Write n bytes of others to a terminal; what is not harmless is written \x1b. */
void tool_put_plain(FILE *f, const char *s, size_t n);
/* Text of others on one line, for a sentence: what is not harmless is written \x1b. Cut to what fits. Returns buf. */
const char *tool_plain(const char *text, char *buf, size_t cap);

/* --- terminals ------------------------------------------------------------------------------------------- */

bool tool_is_terminal(FILE *f);
/* Columns of the terminal on f; 80 where there is none. */
unsigned tool_columns(FILE *f);
/* Write text in lines of at most `width` columns, each after the first beginning with `indent` blanks. A line that begins with
 * blanks is a row of two columns: what does not fit goes on below the second one, or further left in a narrow terminal. */
void tool_wrap(FILE *f, const char *text, unsigned indent, unsigned width);

/* --- JSON ------------------------------------------------------------------------------------------------ */

/* A writer for one value on one line. */
typedef struct tool_json {
    FILE *f;
    bool comma; /* the next thing needs one before it */
} tool_json_t;

tool_json_t tool_json_begin(FILE *f); /* an object, which tool_json_end() closes */
void tool_json_open(tool_json_t *j, const char *name, char bracket); /* '{' or '['; name NULL inside arrays and at the top */
void tool_json_close(tool_json_t *j, char bracket);                  /* '}' or ']' */
void tool_json_text(tool_json_t *j, const char *name, const char *value); /* value NULL writes null */
void tool_json_bytes(tool_json_t *j, const char *name, const char *value, size_t n); /* text that may have zeros in it */
void tool_json_raw(tool_json_t *j, const char *name, const char *json); /* a value that is JSON already */
void tool_json_number(tool_json_t *j, const char *name, double value, int digits); /* not finite: null */
void tool_json_count(tool_json_t *j, const char *name, uint64_t value);
void tool_json_end(tool_json_t *j); /* the end of the object, newline and flush */

/* --- commands -------------------------------------------------------------------------------------------- */

extern const tool_command_t tool_root; /* the weft command itself */
extern const tool_command_t tool_call_command, tool_completion_command, tool_element_command, tool_info_command, tool_key_command,
    tool_mem_command, tool_perf_command, tool_policy_command, tool_run_command, tool_serve_command;

#endif
