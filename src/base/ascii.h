/* base/ascii.h - letters and digits of ASCII, whatever locale the program has set. */
#ifndef WEFTI_ASCII_H
#define WEFTI_ASCII_H

#include <stdbool.h>
#include <stddef.h>

static inline bool wefti_is_digit(char c) { return c >= '0' && c <= '9'; }
static inline bool wefti_is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static inline bool wefti_is_alnum(char c) { return wefti_is_alpha(c) || wefti_is_digit(c); }
static inline bool wefti_is_cntrl(char c) { return (unsigned char)c < 0x20 || c == 0x7f; }
static inline bool wefti_is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static inline char wefti_upper(char c) { return (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c); }
static inline char wefti_lower(char c) { return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); }
/* What a hexadecimal digit stands for; -1: it is none. */
static inline int wefti_hex(char c)
{
    return wefti_is_digit(c) ? c - '0' : wefti_lower(c) >= 'a' && wefti_lower(c) <= 'f' ? wefti_lower(c) - 'a' + 10 : -1;
}
/* The first n characters of both are the same but for case. Neither need be terminated. */
static inline bool wefti_same_text(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (wefti_lower(a[i]) != wefti_lower(b[i]))
            return false;
    return true;
}

#endif
