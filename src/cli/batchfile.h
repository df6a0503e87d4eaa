/* batchfile.h - what `tern batch` is made of: the lines of the input, the results that are written
 * already, and two ways to run a line (a model in this process, or a server).
 *
 * The files of results are the journal: a result is one line, appended by one write. A second run with the
 * same files reads them first, drops an incomplete last line, and goes on with the lines that have no
 * result. So every line has one result, however often the command was killed. One thread. */
#ifndef TERN_CLI_BATCHFILE_H
#define TERN_CLI_BATCHFILE_H

#include "base/arena.h"
#include "base/file.h"
#include "base/map.h"
#include "cli/progress.h"
#include "cli/remote.h"

#include <signal.h>

enum batchfile_state { LINE_WAITS, LINE_RUNS, LINE_DONE };

struct batchfile_line {
    size_t at, n; /* in the input */
    const char *custom_id;
    enum batchfile_state state;
    int tries;
    uint64_t not_before; /* clock_ns */
};

struct batchfile {
    const char *in, *out, *errors; /* paths; errors NULL: they are written to out */
    struct filemap input;
    struct batchfile_line *lines;
    int n, cap;
    struct map by_id; /* custom_id → index */
    struct arena ids;
    int fd_out, fd_errors;
    int from;                                       /* no line before this one waits */
    int n_done, n_before, n_good, n_bad, n_running; /* n_before: had a result at the start */
    int64_t prompt_tokens, output_tokens;
    struct progress bar;
    struct buf scratch;
    int rc; /* of the first result that could not be written */
    struct err err;
};

/* Checks every line of the input, and reads the results that there are. */
int batchfile_open(struct batchfile *b, struct err *e);
void batchfile_close(struct batchfile *b);

/* The next line to run, with its path and body (in b->scratch, until the next call); -1: none now. */
int batchfile_next(struct batchfile *b, char path[64], struct str *body, struct err *e);
/* A line has its answer: its result is written. */
void batchfile_answer(struct batchfile *b, int line, int status, struct str request_id,
                      struct str body);
void batchfile_retry(struct batchfile *b,
                     int line); /* it got none for now, and is run again later */
bool batchfile_is_over(
    const struct batchfile *b);           /* nothing waits or runs, or a result cannot be written */
void batchfile_show(struct batchfile *b); /* the bar */

struct batchfile_local {
    const char *model, *device, *kv_type;
    int n_threads, n_ctx, at_once;
};
/* Each runs until all lines have a result, or *stop. */
int batchfile_run_local(struct batchfile *b, const struct batchfile_local *o,
                        volatile sig_atomic_t *stop, struct err *e);
int batchfile_run_remote(struct batchfile *b, struct remote *r, int at_once,
                         volatile sig_atomic_t *stop, struct err *e);
#endif
