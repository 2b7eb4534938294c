/* base/config_text.h - the file WEFT_CONFIG_FILE names: its bytes and its lines. Only config.c and tests look here. */
#ifndef WEFTI_CONFIG_TEXT_H
#define WEFTI_CONFIG_TEXT_H

#include <stddef.h>
#include <weft/status.h>

/* A copy of the text; one byte more than n is there, and zero. Lines are terminated in place. */
typedef struct wefti_config_file {
    char *text;
    size_t n, at;
    unsigned line; /* number of the last one given out; the first is 1 */
} wefti_config_file_t;

typedef struct wefti_config_line {
    char *name, *value;  /* terminated, inside the text */
    const char *problem; /* not NULL: the line is malformed; then `name` is the line and value NULL */
} wefti_config_line_t;

/* Read a regular file of at most 1 MiB. On an error *why_out says what is wrong with it, as the end of a sentence.
 * WEFT_ERR_INVALID (not there, not readable, not a regular file, too large), _LIMIT (no file descriptors), _NOMEM. */
weft_status_t wefti_config_file_load(const char *path, wefti_config_file_t *file_out, const char **why_out);
/* The same from bytes. WEFT_ERR_NOMEM. */
weft_status_t wefti_config_file_from(const void *bytes, size_t n, wefti_config_file_t *file_out);
void wefti_config_file_free(wefti_config_file_t *file);

/* The next line that is neither blank nor a comment: 1, or 0 at the end. */
int wefti_config_file_next(wefti_config_file_t *file, wefti_config_line_t *line_out);

#endif
