/* err.h - errors: a code for the program to act on and a message for a person to read.
 *
 * A function that can fail returns OK (0) or one of the negative codes below, and writes the
 * message into the struct err its caller passes. Callers that need only the code pass NULL. A
 * struct err lives on the caller's stack and owns nothing. The message is cut at 511 bytes, so
 * reporting an error never allocates. */
#ifndef TERN_BASE_ERR_H
#define TERN_BASE_ERR_H

enum {
    OK = 0,
    E_INVALID = -1,      /* a flag, setting or request parameter has a value that is not allowed */
    E_IO = -2,           /* a system call failed: open, read, write, mmap, socket */
    E_FORMAT = -3,       /* malformed input: a file or message violates its format */
    E_NOMEM = -4,        /* allocation failed on the host; also threads */
    E_UNSUPPORTED = -5,  /* well-formed input that tern has no code for */
    E_NOTFOUND = -6,     /* no tensor, key, model or file of this name */
    E_CONTEXT = -7,      /* the request has more tokens than the context window */
    E_CANCELLED = -8,    /* the client or an operator cancelled the request */
    E_DEVICE = -9,       /* a device reported an error while computing */
    E_QUEUE_FULL = -10,  /* admission: the queue has its maximum length */
    E_MEMORY = -11,      /* admission: the request does not fit into the memory budget */
    E_CONCURRENCY = -12, /* admission: the concurrency limit of the tenant or server is reached */
    E_RATE = -13,        /* admission: the tenant exceeds its rate limit */
    E_SHUTDOWN = -14,    /* the server is draining and accepts no new requests */
    E_LOADING = -15,     /* the model is still loading */
    E_DEADLINE = -16,    /* the request's deadline has passed or cannot be met */
    E_DENIED = -17,      /* no API key, or a key without permission for this */
    E_DAMAGED = -18,     /* a model that was opened is damaged: its file changed, or it has NaNs */
    E_DEVICE_MEMORY = -19, /* a device has not enough memory */
    E_BYTES = -20,         /* admission: the bodies of the tenant's requests have too many bytes */
    E_WORKER = -21,        /* the process of the model died, or cannot be reached */
    E_FULL = -22,          /* no space is left on the disk */
    E_READONLY = -23,      /* a folder or file cannot be written */
    E_STORE = -24,         /* the store of jobs cannot be used */
    E_INTERNAL = -99       /* a bug in tern */
};

struct err {
    int code;
    int retry_ms;  /* the client may retry after this many milliseconds; 0: unknown or never */
    char msg[512]; /* NUL-terminated, without a final newline */
};

/* Writes code and message into e (NULL: nowhere) and returns code, for use in a return statement. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Sets E_NOMEM with the message "out of memory: no room for WHAT". */
int err_nomem(struct err *e, const char *what);

/* Prefixes the message already in e with the formatted text and ": "; returns e's code. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A short name that stays stable across versions: "format", "not_found". For logs and the API. */
const char *err_name(int code);
int err_by_name(const char *name); /* E_INTERNAL: no code has that name */
#endif
