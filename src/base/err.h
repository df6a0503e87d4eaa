/* err.h - an error is a code to act on and a sentence to read.
 *
 * Functions that can fail return OK or a code and fill the struct err they were
 * handed; NULL is fine where only the code matters. */
#ifndef TERN_BASE_ERR_H
#define TERN_BASE_ERR_H

enum {
    OK = 0,
    E_INVALID = -1,     /* what was asked makes no sense: a flag, a parameter */
    E_IO = -2,          /* the operating system said no: open, read, write, map */
    E_FORMAT = -3,      /* foreign bytes that are not what they claim to be */
    E_NOMEM = -4,       /* memory, host or device */
    E_UNSUPPORTED = -5, /* well formed, but not something tern runs */
    E_NOTFOUND = -6,    /* a tensor, key, model or file that is not there */
    E_CONTEXT = -7,     /* more tokens than the context holds */
    E_CANCELLED = -8,
    E_DEVICE = -9,       /* a device failed in the middle of its work */
    E_QUEUE_FULL = -10,  /* admission: as much waits as may wait */
    E_MEMORY = -11,      /* admission: no room for it in the memory budget */
    E_CONCURRENCY = -12, /* admission: this tenant, or all, run as much as they may */
    E_RATE = -13,        /* admission: this tenant asks too often */
    E_SHUTDOWN = -14,    /* not taken any more */
    E_LOADING = -15,     /* the model is not there yet */
    E_DEADLINE = -16,    /* it passed, or cannot be kept */
    E_DENIED = -17,      /* no key, or not this one's to ask */
    E_INTERNAL = -99
};

struct err {
    int code;
    int retry_ms; /* asking again makes sense after so long; 0: unknown or never */
    char msg[512];
};

/* Writes the sentence and returns the code, so that it can be returned in one line. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* E_NOMEM: "out of memory: no room for WHAT". */
int err_nomem(struct err *e, const char *what);

/* Puts "what: " before the sentence that is there already; returns e's code. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A short stable name: "format", "not_found". */
const char *err_name(int code);
#endif
