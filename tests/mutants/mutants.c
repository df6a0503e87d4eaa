/* mutants.c - opens damaged models and runs two tokens of each; nothing may end the process.
 *
 *     mutants SEED COUNT      mutants SEED to SEED + COUNT - 1
 *     mutants SEED            one of them, telling what was changed and what came of it
 *
 * Batches of mutants run in child processes, so that a crash is reported with its seed and the rest
 * goes on. A mutant fails if its process ends (a signal, a sanitizer's report), if it takes longer
 * than LIMIT_S seconds or more than LIMIT_MB of memory, or if an error is E_INTERNAL; a batch fails
 * if it leaks, and its mutants are then run one by one to find which. */
#include "mutants.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "convert/quantize.h"
#include "convert/togguf.h"
#include "convert/tohf.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/request.h"
#include "token/tokenizer.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 64, LIMIT_S = 5, LIMIT_MB = 1500, MOST_BASES = 64, MOST_FAILURES = 50 };

/* An allocation beyond the limit fails instead of ending the process. */
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void) { return "print_stacktrace=1"; }
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=1500:detect_leaks=1:handle_abort=1:"
           "quarantine_size_mb=32";
}
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));
void __lsan_disable(void) __attribute__((weak));

/* Between the child that works and the parent that watches it. */
static struct board {
    _Atomic uint64_t seed, since_ns, most_ns; /* times are those of the child's processor */
    atomic_int refused, ran, failed_run,
        converted; /* opened no; opened and ran; ran into an error */
    atomic_int leaked;
} * board;

static struct base bases[MOST_BASES];
static int n_bases;
static char work[256];
static bool telling;

/* ---- sound models ---- */

static void add_base(enum base_kind kind, const char *path)
{
    struct base *b = &bases[n_bases++];

    b->kind = kind;
    snprintf(b->path, sizeof b->path, "%s", path);
}

/* Every folder of golden models, as it is and as a GGUF file of one type or another. */
static void add_folders(const char *root)
{
    static const enum dtype types[] = { DT_F32, DT_F16, DT_Q8_0, DT_BF16 };
    struct dirent **names;
    int n = scandir(root, &names, NULL, alphasort);

    for (int i = 0; i < n; i++) {
        char from[600], to[600];
        struct togguf_opt opt = {
            .src = from, .dst = to, .type = types[n_bases / 2 % 4], .n_threads = 1
        };
        struct togguf_result r;
        struct err e = { 0 };
        snprintf(from, sizeof from, "%s/%s", root, names[i]->d_name);
        snprintf(to, sizeof to, "%s/base-%s.gguf", work, names[i]->d_name);
        if (names[i]->d_name[0] != '.' && file_is_dir(from)) {
            add_base(BASE_HF, from);
            switch (togguf_run(&opt, &r, &e)) {
            case OK: add_base(BASE_GGUF, to); break;
            case E_UNSUPPORTED: break; /* GGUF has no names for some of its tensors */
            default: fprintf(stderr, "mutants: %s\n", e.msg), abort();
            }
        }
        free(names[i]);
    }
    if (n >= 0) free(names);
}

static void add_bases(void)
{
    add_folders("tests/golden/hf");
    add_folders("tests/golden/hf-2026");
    add_folders("tests/golden/quant");
    add_base(BASE_GGUF, "models/tern-tales.gguf");
    add_base(BASE_ONNX, "tests/golden/onnx/embed");
    add_base(BASE_ONNX, "tests/golden/onnx/quant");
    add_base(BASE_ONNX, "tests/golden/onnx/classify");
}

/* ---- one mutant ---- */

/* Processor time of a process: how long a mutant takes does not depend on what else runs here. */
static uint64_t used_ns(clockid_t clock)
{
    struct timespec t = { 0 };

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void remove_tree(const char *path)
{
    DIR *d = opendir(path);

    for (struct dirent *x; d && (x = readdir(d));) {
        char *p = path_join(path, x->d_name);
        if (strcmp(x->d_name, ".") && strcmp(x->d_name, "..")) {
            if (x->d_type == DT_DIR) remove_tree(p);
            else unlink(p);
        }
        mem_free(p);
    }
    if (d) closedir(d);
    rmdir(path);
}

static void tell(const char *what, int rc, const struct err *e)
{
    if (telling) printf("%s: %s%s%s\n", what, err_name(rc), rc ? ": " : "", rc ? e->msg : "");
    if (rc == E_INTERNAL) {
        fprintf(stderr, "an internal error: %s\n", e->msg);
        abort();
    }
}

/* A prompt in the model's own tokens where it can be written in them. */
static void make_prompt(const struct engine *g, struct request *r, int n_vocab)
{
    const struct tokenizer *t = engine_tokenizer(g);

    if (t &&
        tokenizer_encode(t, STR("Once upon a time, caf\xc3\xa9 42."), 0, &r->prompt, NULL) == OK &&
        r->prompt.n)
        return;
    for (int32_t i = 1; i < 6; i++) ids_push(&r->prompt, i % (n_vocab > 0 ? n_vocab : 1));
}

static int run_tokens(struct engine *g, struct err *e)
{
    struct request *r = request_open();
    struct engine_info info;
    struct event ev = { 0 };
    int rc;

    if (!r) return E_NOMEM;
    engine_info(g, &info);
    r->embed = strcmp(info.task, "generate") != 0;
    r->classify = strcmp(info.task, "classify") == 0;
    r->max_tokens = 2;
    r->ignore_eos = true;
    make_prompt(g, r, info.n_vocab);
    rc = engine_submit(g, r, e);
    for (int i = 0; rc == OK && i < 1000 && ev.finish == FINISH_NONE; i++) {
        engine_step(g);
        while (request_next(r, &ev) && ev.finish == FINISH_NONE) {}
    }
    if (rc == OK && ev.finish == FINISH_NONE) rc = err_set(e, E_INTERNAL, "the request never ends");
    if (rc == OK && ev.finish == FINISH_ERROR) *e = r->err, rc = r->err.code;
    request_unref(r);
    return rc;
}

static void load_and_run(struct mutation *m, const char *path)
{
    struct engine_opt opt = { .n_threads = 1,
                              .n_ctx = 64,
                              .kv_tokens = 128,
                              .max_batch = 32,
                              .max_seqs = 2,
                              .kv_type = DT_NONE,
                              .manual = true,
                              .reference = chance(m, 50),
                              .allow_nan = chance(m, 30) };
    struct engine *g = NULL;
    struct err e = { 0 };
    int rc = engine_open(&g, path, &opt, &e);

    tell("open", rc, &e);
    if (rc != OK) {
        atomic_fetch_add(&board->refused, 1);
        return;
    }
    rc = run_tokens(g, &e);
    tell("run", rc, &e);
    atomic_fetch_add(rc == OK ? &board->ran : &board->failed_run, 1);
    engine_close(g);
}

/* The other readers of tensors: converters, and the quantizer. */
static void convert(struct mutation *m, const char *path, enum base_kind kind, const char *dir)
{
    const char *out = arena_printf(m->arena, "%s/out", dir);
    struct err e = { 0 };
    int rc;

    if (kind == BASE_ONNX) return;
    atomic_fetch_add(&board->converted, 1);
    if (chance(m, 50)) {
        struct quantize q = { .in = path, .out = out, .n_threads = 1 };
        q.plan_opt.mix = plan_mix_at((int)pick(m, 20));
        rc = quantize_open(&q, &e);
        if (rc == OK) rc = quantize_run(&q, &e);
        quantize_release(&q);
        tell("quantize", rc, &e);
    } else if (kind == BASE_GGUF) {
        struct tohf_opt opt = {
            .src = path, .dst = out, .type = DT_NONE, .shard_bytes = 1 << 30, .n_threads = 1
        };
        struct tohf_result r = { 0 };
        tell("to a folder", tohf_run(&opt, &r, &e), &e);
    } else {
        struct togguf_opt opt = { .src = path, .dst = out, .type = DT_F16, .n_threads = 1 };
        struct togguf_result r = { 0 };
        tell("to GGUF", togguf_run(&opt, &r, &e), &e);
    }
}

static void run_mutant(uint64_t seed)
{
    struct arena a = { 0 };
    struct mutation m = { .arena = &a, .all = bases, .n_all = n_bases };
    char dir[300];
    const struct base *b;
    const char *path;

    rng_seed(&m.rng, seed);
    snprintf(dir, sizeof dir, "%s/m", work);
    remove_tree(dir);
    mkdir(dir, 0700);
    b = &bases[pick(&m, (uint64_t)n_bases)];
    if (chance(&m, 15)) b = &bases[n_bases - 1 - (int)pick(&m, 3)]; /* there are few ONNX models */
    path = b->kind == BASE_GGUF ? mutate_gguf(&m, b, dir)
           : b->kind == BASE_HF ? mutate_hf(&m, b, dir)
                                : mutate_onnx(&m, b, dir);
    if (telling) printf("%s: %s\n", b->path, buf_cstr(&m.what)), fflush(stdout);
    atomic_store(&board->since_ns, used_ns(CLOCK_PROCESS_CPUTIME_ID)); /* making it is free */
    load_and_run(&m, path);
    if (chance(&m, 25)) convert(&m, path, b->kind, dir);
    buf_release(&m.what);
    arena_release(&a);
}

/* ---- batches ---- */

static void run_batch(uint64_t seed, int n)
{
    for (int i = 0; i < n; i++) {
        uint64_t took;
        atomic_store(&board->since_ns, UINT64_MAX / 2);
        atomic_store(&board->seed, seed + (uint64_t)i);
        run_mutant(seed + (uint64_t)i);
        took = used_ns(CLOCK_PROCESS_CPUTIME_ID) - atomic_load(&board->since_ns);
        if (took > atomic_load(&board->most_ns)) atomic_store(&board->most_ns, took);
    }
    atomic_store(&board->since_ns, used_ns(CLOCK_PROCESS_CPUTIME_ID));
    fflush(stdout);
    if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check()) _exit(23);
    _exit(0);
}

static long resident_mb(pid_t pid)
{
    char path[64];
    long pages = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    if ((f = fopen(path, "r"))) {
        if (fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
        fclose(f);
    }
    return pages * sysconf(_SC_PAGESIZE) >> 20;
}

/* What ended the child; "": nothing. */
static const char *watch(pid_t pid)
{
    static char why[80];
    uint64_t start = clock_ns(), seed = 0, since;
    clockid_t clock;
    int status;
    pid_t got;

    why[0] = 0;
    if (clock_getcpuclockid(pid, &clock) != 0) return "has no clock";
    while ((got = waitpid(pid, &status, WNOHANG)) == 0) {
        since = atomic_load(&board->since_ns);
        if (seed != atomic_load(&board->seed)) seed = atomic_load(&board->seed), start = clock_ns();
        if (used_ns(clock) > since + LIMIT_S * 1000000000ull)
            snprintf(why, sizeof why, "took longer than %d s", LIMIT_S);
        else if (clock_ns() - start > 12 * LIMIT_S * 1000000000ull)
            snprintf(why, sizeof why, "is stuck: more than %d s", 12 * LIMIT_S);
        else if (resident_mb(pid) > LIMIT_MB)
            snprintf(why, sizeof why, "took more than %d MB", LIMIT_MB);
        if (why[0]) {
            kill(pid, SIGABRT);
            usleep(200000);
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return why;
        }
        usleep(5000);
    }
    if (got < 0) snprintf(why, sizeof why, "is gone");
    else if (WIFSIGNALED(status)) snprintf(why, sizeof why, "ended by signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) == 23) snprintf(why, sizeof why, "leaked");
    else if (WEXITSTATUS(status)) snprintf(why, sizeof why, "exit status %d", WEXITSTATUS(status));
    return why;
}

static void print_output(const char *path)
{
    struct buf b = { 0 };

    if (file_read(&b, path, 64 << 20, NULL) == OK && b.n)
        printf("%.*s\n", (int)(b.n > 6000 ? 6000 : b.n), b.p);
    buf_release(&b);
}

static const char *fork_batch(uint64_t seed, int n)
{
    char out[300];
    const char *why;
    pid_t pid;

    snprintf(out, sizeof out, "%s/output", work);
    atomic_store(&board->since_ns, 0);
    atomic_store(&board->seed, seed);
    fflush(stdout);
    if ((pid = fork()) == 0) {
        int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (fd >= 0 && !telling) dup2(fd, 2);
        run_batch(seed, n);
    }
    if (pid < 0) return "cannot start a process";
    why = watch(pid);
    if (why[0] && !(n > 1 && strcmp(why, "leaked") == 0)) {
        printf("FAIL mutant %llu: %s\n", (unsigned long long)atomic_load(&board->seed), why);
        print_output(out);
    }
    return why;
}

static int run_all(uint64_t seed, uint64_t count)
{
    int failures = 0;

    for (uint64_t end = seed + count; seed < end && failures < MOST_FAILURES;) {
        int n = end - seed < BATCH ? (int)(end - seed) : BATCH;
        const char *why = fork_batch(seed, n);
        if (!why[0]) {
            seed += (uint64_t)n;
        } else if (strcmp(why, "leaked") == 0) {
            int found = n == 1;
            for (int i = 0; n > 1 && i < n; i++) found += fork_batch(seed + (uint64_t)i, 1)[0] != 0;
            failures += found ? found : 1;
            seed += (uint64_t)n;
        } else {
            failures++;
            seed = atomic_load(&board->seed) + 1;
        }
    }
    return failures;
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t start = clock_ns();
    int failures;

    telling = argc <= 2;
    log_set_level(telling ? LOG_WARN : LOG_ERROR);
    snprintf(work, sizeof work, "%s/tern-mutants.XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(work)) return perror(work), 1;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) return perror("mmap"), 1;
    add_bases();
    failures = run_all(seed, count);
    printf(
        "mutants: %llu from seed %llu of %d models: %d refused, %d ran, %d ended in an error, %d "
        "also converted; longest %.0f ms; %d failed; %.0f s\n",
        (unsigned long long)count, (unsigned long long)seed, n_bases, atomic_load(&board->refused),
        atomic_load(&board->ran), atomic_load(&board->failed_run), atomic_load(&board->converted),
        (double)atomic_load(&board->most_ns) / 1e6, failures, clock_ms_since(start) / 1000);
    if (!telling) remove_tree(work);
    else printf("kept in %s\n", work);
    return failures != 0;
}
