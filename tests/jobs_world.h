/* jobs_world.h - for tests of src/jobs: a store in a folder of its own, and its rows. */
#ifndef TERN_TESTS_JOBS_WORLD_H
#define TERN_TESTS_JOBS_WORLD_H

#include "jobs/jobstore.h"
#include "support.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct jobstore_limits no_limits = { .max_lines = 1000 };

/* A folder that does not exist yet. */
static inline const char *new_dir(void)
{
    static char path[8][512];
    static int n;
    char *p = path[n++ % 8];

    snprintf(p, sizeof path[0], "%s/jobs-%d/deep", temp_dir(), n);
    return p;
}

static inline struct jobstore *must_open(const char *dir, const struct jobstore_limits *lim)
{
    struct jobstore *s = NULL;
    struct err e = { 0 };
    int rc = jobstore_open(&s, dir, lim ? lim : &no_limits, &e);

    if (rc != OK) fail_msg("jobstore_open: %s", e.msg);
    return s;
}

#define IN_TRANSACTION(s, call)                                    \
    do {                                                           \
        struct err tx_ = { 0 };                                    \
        struct err *tx = &tx_;                                     \
        assert_int_equal(jobstore_begin(s, tx), OK);               \
        if ((call) != OK) fail_msg("%s: %s", #call, tx_.msg);      \
        if (jobstore_commit(s, tx) != OK) fail_msg("%s", tx_.msg); \
    } while (0)

/* An uploaded file with this text. */
static inline void add_file(struct jobstore *s, const char *id, const char *tenant,
                            const char *purpose, const char *text)
{
    struct jobstore_file f = { .bytes = (int64_t)strlen(text), .created = jobstore_now() };
    char path[1000];
    FILE *out;

    snprintf(f.id, sizeof f.id, "%s", id);
    snprintf(f.tenant, sizeof f.tenant, "%s", tenant);
    snprintf(f.purpose, sizeof f.purpose, "%s", purpose);
    snprintf(f.name, sizeof f.name, "in.jsonl");
    jobstore_path(s, path, sizeof path, "tmp", id);
    assert_non_null(out = fopen(path, "w"));
    fputs(text, out);
    fclose(out);
    IN_TRANSACTION(s, jobstore_add_file(s, &f, tx));
}

static inline void add_batch(struct jobstore *s, const char *id, const char *input,
                             int64_t window_s)
{
    struct jobstore_batch b = { .window_s = window_s, .window = "24h" };

    snprintf(b.id, sizeof b.id, "%s", id);
    snprintf(b.tenant, sizeof b.tenant, "a");
    snprintf(b.endpoint, sizeof b.endpoint, "/v1/completions");
    snprintf(b.input, sizeof b.input, "%s", input);
    IN_TRANSACTION(s, jobstore_add_batch(s, &b, tx));
}

static inline void validate(struct jobstore *s, const char *id)
{
    bool more = true;

    while (more) IN_TRANSACTION(s, jobstore_validate_step(s, id, &more, tx));
}

static inline void finish(struct jobstore *s, const char *id)
{
    int64_t after = 0;
    bool more = true;

    while (more) IN_TRANSACTION(s, jobstore_finish_step(s, id, &after, &more, tx));
}

/* n lines with the custom ids c1, c2, ... */
static inline const char *make_lines(int n)
{
    static char text[200000];
    size_t at = 0;

    for (int i = 1; i <= n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "{\"custom_id\":\"c%d\",\"method\":\"POST\",\"url\":"
                               "\"/v1/completions\",\"body\":{\"prompt\":\"p%d\",\"x\":1.5}}\n",
                               i, i);
    return text;
}

static inline bool answer(struct jobstore *s, int64_t seq, int status, const char *body)
{
    struct jobstore_answer a = { .status = status, .request_id = STR("r"), .body = str_c(body) };
    bool first = false, ended;

    IN_TRANSACTION(s, jobstore_answer_job(s, seq, &a, &first, &ended, tx));
    return first;
}

static inline char *read_all(const char *path)
{
    static char text[400000];
    FILE *f = fopen(path, "r");
    size_t n;

    assert_non_null(f);
    n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    return text;
}

static inline int count(const char *in, const char *what)
{
    int n = 0;

    for (const char *p = in; (p = strstr(p, what)); p++) n++;
    return n;
}
#endif
