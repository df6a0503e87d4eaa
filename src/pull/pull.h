/* pull.h - downloads a model of the Hugging Face Hub into the cache of Hugging Face's tools.
 *
 * This is the interface of tern-pull.so, the only part of tern that uses libcurl. The program opens it
 * by dlopen when somebody pulls, and calls the one function that it exports.
 *
 * Files come in ranges over several connections, each into BLOB.tern-part beside a record of what has
 * arrived, so that an interrupted download goes on where it was, also after a kill. A blob gets its name
 * when its SHA-256 (or git's SHA-1 of a small file) is right, and a snapshot its links when all blobs
 * are there: half of a model is never seen. One thread calls; two processes may pull the same. */
#ifndef TERN_PULL_PULL_H
#define TERN_PULL_PULL_H

#include "base/err.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pull_what {
    PULL_OFFER,    /* a model of the repository that could be chosen: file, total (bytes) */
    PULL_PLAN,     /* the files are known: n_files, done and total of all bytes */
    PULL_PROGRESS, /* done and total of all bytes, and the file that grew last: sum, file_done,
                    * file_total */
    PULL_FILE,     /* a file is complete and checked: file, sum, total */
    PULL_NOTE      /* a retry, a wait for another process: text */
};

struct pull_event {
    enum pull_what what;
    const char *file, *text; /* valid during the call */
    const char *sum;         /* the checksum that the hub promises, in hex: SHA-256 or SHA-1; "" */
    uint64_t done, total;
    uint64_t file_done, file_total;
    int n_files;
};

struct pull_opt {
    size_t size;           /* sizeof(struct pull_opt): program and library are of one build */
    const char *name;      /* hf:ORG/NAME[@REV][:FILE] */
    const char *endpoint;  /* "https://huggingface.co" */
    const char *token;     /* NULL or "": none. It is sent to the endpoint only. */
    const char *cache;     /* folder of the cache; made if it does not exist */
    const char *ca_file;   /* certificates of authorities; NULL: the system's */
    int connections;       /* at once, 1 to 64 */
    uint64_t range_bytes;  /* of one request */
    int retries, retry_ms; /* of a request without progress; the first wait, doubled each time */
    int stall_s;           /* without a byte, then the connection is given up */
    void (*tell)(void *arg, const struct pull_event *ev);
    void *arg;
    const volatile sig_atomic_t *stop; /* not 0: end soon with E_CANCELLED; NULL: never */
};

struct pull_result {
    bool no_connection; /* the failure: the endpoint could not be reached */
    char commit[41];
    char path[4096]; /* of the model in the cache */
    int n_files;
    uint64_t bytes;      /* of the model */
    uint64_t downloaded; /* of them now */
};

/* E_INVALID: the name, or several models fit. E_NOTFOUND, E_DENIED, E_IO, E_FORMAT: as the hub or the
 * disk says. E_DAMAGED: the bytes are not those that the hub promised; they are removed. */
typedef int pull_run_fn(const struct pull_opt *opt, struct pull_result *out, struct err *e);
#define PULL_SYMBOL "tern_pull_run"
#endif
