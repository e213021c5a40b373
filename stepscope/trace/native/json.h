/* Strict JSON scanning (RFC 8259): every function takes the place where its value begins and returns the place behind
 * it, or NULL to refuse. Strings and blanks are skipped 16 bytes at a time (SSE2). */
#ifndef STEPSCOPE_JSON_H
#define STEPSCOPE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__ /* every x86-64; other machines go byte by byte */
#include <emmintrin.h>
#endif

typedef const uint8_t *Place;

enum { MOST_NESTING = 64, MOST_DIGITS = 18 };

static inline bool is_space(uint8_t byte) {
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

static inline Place skip_space(Place p, Place end) {
    if (p < end && *p > ' ')
        return p;
    if (end - p > 1 && *p == ' ' && p[1] > ' ')
        return p + 1;
#ifdef __SSE2__
    for (; end - p >= 16; p += 16) {
        __m128i text = _mm_loadu_si128((const __m128i *)p);
        __m128i blank = _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(text, _mm_set1_epi8('\n')));
        unsigned others = (unsigned)_mm_movemask_epi8(blank) ^ 0xffff;
        if (others) {
            p += __builtin_ctz(others);
            break;
        }
    }
#endif
    while (p < end && is_space(*p))
        p++;
    return p;
}

static inline bool is_digit(Place p, Place end) {
    return p < end && *p >= '0' && *p <= '9';
}

/* One character of two to four bytes, by the table of well-formed UTF-8 in the Unicode standard. */
static Place skip_wide_character(Place p, Place end) {
    uint8_t lead = *p, low = 0x80, high = 0xbf;
    int following = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    if (lead < 0xc2 || lead > 0xf4 || end - p <= following)
        return NULL;
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xed)
        high = 0x9f;
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f;
    if (p[1] < low || p[1] > high)
        return NULL;
    for (int i = 2; i <= following; i++)
        if ((p[i] & 0xc0) != 0x80)
            return NULL;
    return p + following + 1;
}

static Place skip_escape(Place p, Place end) {
    if (end - p < 2)
        return NULL;
    if (p[1] != 'u')
        return strchr("\"\\/bfnrt", p[1]) && p[1] ? p + 2 : NULL;
    if (end - p < 6)
        return NULL;
    for (int i = 2; i < 6; i++)
        if (!((p[i] >= '0' && p[i] <= '9') || ((p[i] | 32) >= 'a' && (p[i] | 32) <= 'f')))
            return NULL;
    if ((p[2] | 32) == 'd' && p[3] >= '8')
        return NULL; /* a surrogate: rare, and not always one of a valid pair */
    return p + 6;
}

/* Skip to the next special byte of a string: quote, backslash, control or part of a wide character. */
static inline Place skip_plain(Place p, Place end) {
#ifdef __SSE2__
    for (; end - p >= 16; p += 16) {
        __m128i text = _mm_loadu_si128((const __m128i *)p);
        __m128i special = _mm_cmplt_epi8(text, _mm_set1_epi8(0x20)); /* signed: wide characters are below, too */
        special = _mm_or_si128(special, _mm_cmpeq_epi8(text, _mm_set1_epi8('"')));
        special = _mm_or_si128(special, _mm_cmpeq_epi8(text, _mm_set1_epi8('\\')));
        unsigned found = (unsigned)_mm_movemask_epi8(special);
        if (found)
            return p + __builtin_ctz(found);
    }
#endif
    while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\')
        p++;
    return p;
}

/* A string from its opening quote; `plain` is whether it has no escapes. */
static inline Place skip_string(Place p, Place end, bool *plain) {
    *plain = true;
    if (p >= end || *p++ != '"')
        return NULL;
    for (;;) {
        p = skip_plain(p, end);
        if (p >= end || *p < 0x20)
            return NULL;
        if (*p == '"')
            return p + 1;
        if (*p == '\\') {
            *plain = false;
            p = skip_escape(p, end);
        } else {
            p = skip_wide_character(p, end);
        }
        if (!p)
            return NULL;
    }
}

static Place skip_digits(Place p, Place end) {
    if (!is_digit(p, end))
        return NULL;
    while (is_digit(p, end))
        p++;
    return p;
}

static inline Place skip_number(Place p, Place end) {
    if (p < end && *p == '-')
        p++;
    bool leads_with_zero = p < end && *p == '0';
    Place first = p;
    if (!(p = skip_digits(p, end)) || (leads_with_zero && p - first > 1))
        return NULL;
    if (p < end && *p == '.' && !(p = skip_digits(p + 1, end)))
        return NULL;
    if (p < end && (*p | 32) == 'e') {
        p++;
        if (p < end && (*p == '-' || *p == '+'))
            p++;
        Place exponent = p;
        if (!(p = skip_digits(p, end)) || p - exponent > 2)
            return NULL;
    }
    return p;
}

static Place skip_word(Place p, Place end, const char *word, ptrdiff_t size) {
    return end - p >= size && memcmp(p, word, (size_t)size) == 0 ? p + size : NULL;
}

static Place skip_value(Place p, Place end, int depth);

static Place skip_object(Place p, Place end, int depth) {
    bool plain;
    p = skip_space(p + 1, end);
    if (p < end && *p == '}')
        return p + 1;
    for (;;) {
        if (!(p = skip_string(p, end, &plain)))
            return NULL;
        p = skip_space(p, end);
        if (p >= end || *p != ':')
            return NULL;
        if (!(p = skip_value(skip_space(p + 1, end), end, depth)))
            return NULL;
        p = skip_space(p, end);
        if (p >= end || (*p != ',' && *p != '}'))
            return NULL;
        if (*p++ == '}')
            return p;
        p = skip_space(p, end);
    }
}

typedef Place Skip(Place p, Place end, int depth);

static inline Place skip_items(Place p, Place end, Skip *skip_item, int depth) {
    if (p >= end || *p != '[')
        return NULL;
    p = skip_space(p + 1, end);
    if (p < end && *p == ']')
        return p + 1;
    for (;;) {
        if (!(p = skip_item(p, end, depth)))
            return NULL;
        p = skip_space(p, end);
        if (p >= end || (*p != ',' && *p != ']'))
            return NULL;
        if (*p++ == ']')
            return p;
        p = skip_space(p, end);
    }
}

static Place skip_value(Place p, Place end, int depth) {
    bool plain;
    if (p >= end || depth >= MOST_NESTING)
        return NULL;
    if (*p == '"')
        return skip_string(p, end, &plain);
    if (*p <= '9')
        return skip_number(p, end);
    switch (*p) {
    case '{': return skip_object(p, end, depth + 1);
    case '[': return skip_items(p, end, skip_value, depth + 1);
    case 't': return skip_word(p, end, "true", 4);
    case 'f': return skip_word(p, end, "false", 5);
    case 'n': return skip_word(p, end, "null", 4);
    default: return NULL;
    }
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
/* Eight digits at once in one 64-bit word: neighbouring lanes are combined by tens, hundreds, ten thousands (SWAR;
 * D. Lemire, "Quickly parsing eight digits", 2018). */
static inline bool read_eight_digits(Place p, int64_t *value) {
    uint64_t text;
    memcpy(&text, p, 8);
    const uint64_t high = 0xf0f0f0f0f0f0f0f0u;
    if ((text & high) != 0x3030303030303030u || ((text + 0x0606060606060606u) & high) != 0x3030303030303030u)
        return false;
    text = (text & 0x0f0f0f0f0f0f0f0fu) * 2561 >> 8;
    text = (text & 0x00ff00ff00ff00ffu) * 6553601 >> 16;
    *value = *value * 100000000 + (int64_t)((text & 0x0000ffff0000ffffu) * 42949672960001u >> 32);
    return true;
}
#else
static inline bool read_eight_digits(Place p, int64_t *value) {
    (void)p, (void)value;
    return false;
}
#endif

/* Digits without sign; at most 18, without leading zeros. */
static inline Place read_digits(Place p, Place end, int64_t *value) {
    Place first = p;
    int64_t number = 0;
    while (end - p >= 8 && p - first <= 8 && read_eight_digits(p, &number))
        p += 8;
    while (is_digit(p, end) && p - first <= MOST_DIGITS)
        number = number * 10 + (*p++ - '0');
    if (p == first || p - first > MOST_DIGITS || (*first == '0' && p - first > 1))
        return NULL;
    *value = number;
    return p;
}

static inline Place read_integer(Place p, Place end, int64_t *value) {
    bool is_negative = p < end && *p == '-';
    p = read_digits(p + is_negative, end, value);
    if (!p || (p < end && (*p == '.' || (*p | 32) == 'e')))
        return NULL;
    if (is_negative)
        *value = -*value;
    return p;
}

/* ROCm writes the size of a copy in quotes. */
static inline Place read_count(Place p, Place end, int64_t *value) {
    if (p >= end || *p != '"')
        return read_integer(p, end, value);
    p = read_digits(p + 1, end, value);
    return p && p < end && *p == '"' ? p + 1 : NULL;
}

/* Microseconds with at most three decimals, as nanoseconds: those need no rounding. */
static inline Place read_time(Place p, Place end, int64_t most_us, int64_t *ns) {
    static const int64_t scale[] = {1000, 100, 10, 1};
    bool is_negative = p < end && *p == '-';
    int64_t whole, fraction = 0;
    int decimals = 0;
    if (!(p = read_digits(p + is_negative, end, &whole)) || whole >= most_us)
        return NULL;
    if (p < end && *p == '.') {
        for (p++; is_digit(p, end) && decimals < 3; decimals++)
            fraction = fraction * 10 + (*p++ - '0');
        if (decimals == 0)
            return NULL;
    }
    if (p < end && (is_digit(p, end) || *p == '.' || (*p | 32) == 'e'))
        return NULL;
    *ns = whole * 1000 + fraction * scale[decimals];
    if (is_negative)
        *ns = -*ns;
    return p;
}

#endif
