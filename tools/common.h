/* tools/common.h - what the commands share: options, numbers, sentences, terminals, JSON.
 *
 * The commands see include/weft only; everything here is theirs. */
#ifndef WEFT_TOOLS_COMMON_H
#define WEFT_TOOLS_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <weft/status.h>

/* Exit statuses of every command. */
enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* The name errors begin with: "weft perf". Set once by main(). */
extern const char *tool_name;

/* One sentence to stderr, with the name in front and a newline behind. */
void tool_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same for a call that failed at once: `what`, the status's sentence, and the library's detail if there is one. */
void tool_error_status(weft_status_t st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
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
/* Say that there is no such command of `whose` ("weft mem"), and which was meant. */
void tool_no_command(const char *word, const char *const *names, size_t n, const char *whose);

/* Bytes of the character that s begins with, in UTF-8; 0 if it begins with none, or at the end. */
size_t tool_utf8_len(const char *s);

/* Bytes of the character that s begins with, n of them left, if it may go to a terminal as it is (newlines and tabs too, with `lines`); 0 if not. */
size_t tool_harmless(const char *s, size_t n, bool lines);
/* Text of others on one line, for a sentence: what is not harmless is written \x1b. Cut to what fits. Returns buf. */
const char *tool_plain(const char *text, char *buf, size_t cap);

/* --- options --------------------------------------------------------------------------------------------- */

#define TOOL_WORD 1000 /* what tool_args_next() returns for a word that is no option */

typedef struct tool_opt {
    int id;           /* what tool_args_next() returns; less than TOOL_WORD */
    const char *name; /* "size": given as --size VALUE or --size=VALUE; "l": given as -l */
    const char *arg;  /* NULL: takes none; "[URI]": may have one; "N": must have one */
    const char *help; /* lines by '\n' */
} tool_opt_t;

typedef struct tool_args {
    int argc, at;
    char **argv;
    const tool_opt_t *opts; /* ends with a name of NULL */
    const char *value;      /* of the option just returned, NULL if none was given; or the word */
    bool words;             /* set by the command: it takes words that are no options. "-" is one, and all after "--" */
    bool numbers;           /* set by the command: -5 and -.5 are words too */
    bool only_words;        /* "--" was seen */
} tool_args_t;

/* Reads argv[1...]. */
void tool_args_init(tool_args_t *a, int argc, char **argv, const tool_opt_t *opts);
/* The next option's id, 0 at the end, -1 after a sentence about what is wrong with it (exit with TOOL_USAGE). */
int tool_args_next(tool_args_t *a);
/* The table as help, on f. */
void tool_args_help(const tool_opt_t *opts, FILE *f);

/* --- terminals ------------------------------------------------------------------------------------------- */

bool tool_is_terminal(FILE *f);
/* Columns of the terminal on f; 100 where it is none. */
unsigned tool_columns(FILE *f);
/* Write text in lines of at most `width` columns, each after the first beginning with `indent` blanks. */
void tool_wrap(FILE *f, const char *text, unsigned indent, unsigned width);

/* --- JSON ------------------------------------------------------------------------------------------------ */

/* A writer for one value on one line. Names are literals of ours, so only values are escaped. */
typedef struct tool_json {
    FILE *f;
    bool comma; /* the next thing needs one before it */
} tool_json_t;

void tool_json_open(tool_json_t *j, const char *name, char bracket); /* '{' or '['; name NULL inside arrays and at the top */
void tool_json_close(tool_json_t *j, char bracket);                  /* '}' or ']' */
void tool_json_text(tool_json_t *j, const char *name, const char *value); /* value NULL writes null */
void tool_json_bytes(tool_json_t *j, const char *name, const char *value, size_t n); /* text that may have zeros in it */
void tool_json_raw(tool_json_t *j, const char *name, const char *json); /* a value that is JSON already */
void tool_json_number(tool_json_t *j, const char *name, double value, int digits); /* not finite: null */
void tool_json_count(tool_json_t *j, const char *name, uint64_t value);
void tool_json_end(tool_json_t *j); /* newline and flush */

/* --- commands -------------------------------------------------------------------------------------------- */

int tool_call(int argc, char **argv);
void tool_call_help(FILE *f);
int tool_element(int argc, char **argv);
void tool_element_help(FILE *f);
int tool_info(int argc, char **argv);
void tool_info_help(FILE *f);
int tool_key(int argc, char **argv);
void tool_key_help(FILE *f);
int tool_mem(int argc, char **argv);
void tool_mem_help(FILE *f);
int tool_perf(int argc, char **argv);
void tool_perf_help(FILE *f);
int tool_run(int argc, char **argv);
void tool_run_help(FILE *f);
int tool_serve(int argc, char **argv);
void tool_serve_help(FILE *f);

#endif
