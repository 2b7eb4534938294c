/* tests/lib/history.h - what was written to a mirror and what may be read from it.
 *
 * Bytes are written in cells of HISTORY_CELL bytes, each of which says which mirror, which write and which place it is of.
 * Writes of one mirror are numbered in the order in which they are posted, which is the order in which they take effect, if
 * they do: blocks have one writer at a time. A write that did not end well may have happened, or not, or happen later, but not
 * after one that was posted after it.
 *
 * A read may return, for each cell, the last write that was acknowledged before the read began, or any later one. What it
 * returns of one block is of one moment: who sees one cell of a write sees all of them, or something later. Nothing else may
 * ever be seen. */
#ifndef WEFT_TEST_HISTORY_H
#define WEFT_TEST_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HISTORY_CELL 512u
#define HISTORY_BLOCK 4096u

typedef struct history history_t;

/* len, offsets and lengths below are multiples of HISTORY_CELL. */
history_t *history_new(uint32_t mirror, uint64_t len);
void history_free(history_t *h);

/* A write begins: its bytes are put into buf, which is yours; its number. */
uint32_t history_write(history_t *h, uint64_t offset, size_t len, void *buf);
/* It was not posted after all: it never happens. */
void history_unwrite(history_t *h, uint32_t write);
/* It was acknowledged. (Of those that end otherwise nothing has to be said.) */
void history_written(history_t *h, uint32_t write);

/* A read begins: what has to be in it at least, for history_check(), which frees it. */
typedef struct history_read history_read_t;
history_read_t *history_read(history_t *h, uint64_t offset, size_t len);
/* It has ended with these bytes: NULL if they may be so, else what is wrong. buf NULL: it failed, nothing is looked at. */
const char *history_check(history_t *h, history_read_t *read, const void *buf);

#endif
