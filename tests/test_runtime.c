/* The C ABI with threads and several models (include/tern.h): runtimes, descriptors, callbacks,
 * deadlines, the queue, log probabilities, embeddings. test_tern.c has the rest.
 *
 * Two models: the one that ships, and a copy of it under another name. Nothing here depends on how
 * fast a step is: a request that must still run when it is looked at generates without an end, up to
 * a context that its reader does not read. */
#include "support.h"

#include "base/sealed.h"
#include "tern.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TALES "models/tern-tales.gguf"
#define MB (UINT64_C(1) << 20)
enum { WAIT_MS = 120000 }; /* for what must happen */

static void need_ok(int rc)
{
    if (rc != TERN_OK) fail_msg("%d: %s", rc, tern_error());
}

static tern_options small_options(void)
{
    tern_options o;

    tern_options_init(&o);
    o.threads = 1;
    o.context = 512;
    o.kv_tokens = 4096;
    return o;
}

static tern_runtime *open_runtime(int models_max)
{
    tern_runtime_options o;
    tern_runtime *rt = NULL;

    tern_runtime_options_init(&o);
    o.models_max = models_max;
    need_ok(tern_runtime_open(&rt, &o));
    return rt;
}

static tern_model *load(tern_runtime *rt, const char *name)
{
    tern_options o = small_options();
    tern_model *m = NULL;

    need_ok(tern_load(&m, rt, name, repo(TALES), &o));
    return m;
}

static tern_params greedy(const tern_model *m, int n)
{
    tern_params p;

    tern_params_init(&p, m);
    p.temp = 0;
    p.raw = 1;
    p.max_tokens = n;
    p.ignore_eos = n == 0;
    return p;
}

static tern_request *submit(tern_model *m, const char *text, const tern_params *p)
{
    tern_request *r = NULL;

    need_ok(tern_submit(&r, m, text, strlen(text), p));
    return r;
}

/* Text until the end; returns the code that ended it. */
static int read_text(tern_request *r, char *text, size_t cap)
{
    tern_event ev = { 0 };
    size_t n = 0;
    int rc;

    while ((rc = tern_next_wait(r, &ev, WAIT_MS)) == TERN_OK) {
        assert_true(n + ev.n < cap);
        memcpy(text + n, ev.text, ev.n);
        n += ev.n;
        if (ev.finish != TERN_FINISH_NONE) break;
    }
    text[n] = 0;
    return rc;
}

static tern_model_info info_of(const tern_model *m)
{
    tern_model_info i;

    need_ok(tern_info(m, &i));
    return i;
}

static tern_counts counts_of(const tern_model *m)
{
    tern_counts c;

    need_ok(tern_model_counts(m, &c));
    return c;
}

/* Until so many requests wait. */
static void wait_waiting(const tern_model *m, int n)
{
    const struct timespec ms = { .tv_nsec = 1000000 };

    for (int i = 0; i < WAIT_MS && counts_of(m).waiting != n; i++) nanosleep(&ms, NULL);
    assert_int_equal(counts_of(m).waiting, n);
}

/* A queue of one: a request that generates until the context is full, which takes so many events that
 * it waits for its reader before. */
static tern_model *load_single(tern_runtime *rt, int queue)
{
    tern_options o = small_options();
    tern_model *m = NULL;

    o.sequences = 1;
    o.context = 4096;
    o.kv_tokens = 8192;
    o.queue = queue;
    need_ok(tern_load(&m, rt, "single", repo(TALES), &o));
    return m;
}

/* ---- models by name ---- */

static void models_are_loaded_listed_found_and_unloaded_by_name(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_model *a = load(rt, "ada"), *b = load(rt, NULL), *again = NULL;
    tern_options other = small_options();
    tern_usage use;
    char **names = NULL;
    size_t n = 0;
    (void)state;

    need_ok(tern_list(rt, &names, &n));
    assert_int_equal(n, 2);
    assert_string_equal(names[0], "ada");
    assert_string_equal(names[1], "tern-tales");
    assert_null(names[2]);
    tern_free(names);
    need_ok(tern_find(&again, rt, "ada"));
    assert_ptr_equal(again, a);
    tern_close(again);
    assert_int_equal(tern_find(&again, rt, "bob"), TERN_E_NOTFOUND);
    assert_non_null(strstr(tern_error(), "bob"));
    other.context = 256;
    assert_int_equal(tern_load(&again, rt, "ada", repo(TALES), &other), TERN_E_INVALID);
    assert_non_null(strstr(tern_error(), "'ada'"));

    need_ok(tern_runtime_usage(rt, &use));
    assert_int_equal(use.n_loaded, 2);
    need_ok(tern_unload(rt, "ada", WAIT_MS));
    assert_int_equal(tern_unload(rt, "ada", 0), TERN_E_NOTFOUND);
    assert_int_equal(tern_submit(&(tern_request *){ NULL }, a, "x", 1, NULL), TERN_E_NOTFOUND);
    assert_int_equal(info_of(a).state, TERN_UNLOADED);
    assert_int_equal(info_of(a).resident_bytes, 0);
    need_ok(tern_load(&again, rt, "ada", repo(TALES), &other)); /* the name is free again */
    assert_int_equal(info_of(again).context, 256);
    tern_close(again);
    tern_close(a);
    tern_close(b);
    tern_runtime_close(rt);
}

static void memory_is_what_the_load_plan_and_the_pool_count(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_model *m = load(rt, "m");
    tern_model_info i = info_of(m);
    tern_usage use;
    (void)state;

    need_ok(tern_runtime_usage(rt, &use));
    assert_int_equal(use.bytes, i.weight_bytes + i.kv_bytes + i.scratch_bytes);
    assert_true(i.weight_bytes > 8 * MB && i.weight_bytes < 64 * MB);
    assert_true(i.kv_bytes > 0 && i.scratch_bytes > 0 && i.device_bytes == 0);
    assert_true(i.resident_bytes > 0);
    assert_true(i.resident_bytes <= i.weight_bytes + i.kv_bytes + i.scratch_bytes);
    assert_true(i.mapped_bytes <= i.weight_bytes);
    assert_string_equal(i.id, "m");
    assert_string_equal(i.arch, "llama");
    assert_string_equal(i.path, repo(TALES));
    assert_int_equal(i.state, TERN_READY);
    assert_int_equal(i.n_loads, 1);
    assert_true(i.embedding > 0);
    need_ok(tern_unload(rt, "m", WAIT_MS));
    need_ok(tern_runtime_usage(rt, &use));
    assert_int_equal(use.bytes, 0);
    tern_close(m);
    tern_runtime_close(rt);
}

static void an_unused_model_is_evicted_and_comes_back_with_the_next_request(void **state)
{
    tern_runtime *rt = open_runtime(1);
    tern_model *a = load(rt, "ada"), *b;
    tern_params p = greedy(a, 12);
    char first[1000], second[1000];
    tern_request *r = submit(a, "Once upon a time", &p), *s;
    (void)state;

    need_ok(read_text(r, first, sizeof first)); /* read to its end, and still open */
    b = load(rt, "bob");
    assert_int_equal(info_of(a).state, TERN_UNLOADED);
    assert_int_equal(info_of(a).n_evictions, 1);
    assert_string_equal(info_of(a).arch, "llama"); /* facts stay */
    s = submit(a, "Once upon a time", &p);
    need_ok(read_text(s, second, sizeof second));
    assert_string_equal(first, second);
    assert_int_equal(info_of(a).n_loads, 2);
    assert_int_equal(info_of(b).state, TERN_UNLOADED);
    tern_request_close(r);
    tern_request_close(s);
    tern_close(a);
    tern_close(b);
    tern_runtime_close(rt);
}

static void a_model_over_the_memory_limit_is_refused_and_leaves_nothing(void **state)
{
    tern_runtime_options ro;
    tern_options o = small_options();
    tern_runtime *rt = NULL;
    tern_model *m = (tern_model *)1;
    tern_usage use;
    (void)state;

    tern_runtime_options_init(&ro);
    ro.memory_limit = 4 * MB;
    need_ok(tern_runtime_open(&rt, &ro));
    assert_int_equal(tern_load(&m, rt, "m", repo(TALES), &o), TERN_E_MEMORY);
    assert_null(m);
    need_ok(tern_runtime_usage(rt, &use));
    assert_int_equal(use.n_models, 0);
    assert_int_equal(use.bytes, 0);
    assert_int_equal(use.memory_limit, 4 * MB);
    assert_true(tern_load(&m, rt, "m", "/no/such/model.gguf", &o) < 0);
    assert_non_null(strstr(tern_error(), "/no/such/model.gguf"));
    tern_runtime_close(rt);
}

/* Hugging Face's cache with one model, whose file is the one that ships. */
static void make_cache(void)
{
    char path[4096], file[4200];

    snprintf(path, sizeof path, "%s/models--org--tales", temp_dir());
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/models--org--tales/refs", temp_dir());
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/models--org--tales/snapshots", temp_dir());
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/models--org--tales/snapshots/0123456789", temp_dir());
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(file, sizeof file, "%s/tales-Q8_0.gguf", path);
    assert_non_null(realpath(repo(TALES), path));
    assert_int_equal(symlink(path, file), 0);
    temp_file("models--org--tales/refs/main", "0123456789", 10);
    setenv("HF_HUB_CACHE", temp_dir(), 1);
}

static void models_have_the_names_that_the_commands_take(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_options o = small_options();
    tern_model *m = NULL;
    char file[4096];
    (void)state;

    make_cache();
    need_ok(tern_load(&m, rt, NULL, "hf:org/tales:tales-Q8_0.gguf", &o));
    assert_string_equal(info_of(m).id, "tales-Q8_0");
    tern_close(m);
    snprintf(file, sizeof file, "file:%s", repo(TALES));
    need_ok(tern_load(&m, rt, "by-file", file, &o));
    assert_string_equal(info_of(m).path, repo(TALES));
    tern_close(m);
    assert_int_equal(tern_load(&m, rt, NULL, "hf:org/other", &o), TERN_E_NOTFOUND);
    assert_int_equal(tern_open(&m, "hf:org/other", &o), TERN_E_NOTFOUND);
    assert_non_null(strstr(tern_error(), "org/other"));
    unsetenv("HF_HUB_CACHE");
    tern_runtime_close(rt);
}

static void a_manifest_that_is_required_must_be_there(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_options o = small_options();
    tern_model *m = NULL;
    (void)state;

    o.verify_manifest = "require";
    assert_true(tern_load(&m, rt, "m", repo(TALES), &o) < 0);
    assert_non_null(strstr(tern_error(), "manifest"));
    assert_true(tern_open(&m, repo(TALES), &o) < 0);
    o.verify_manifest = "warn";
    need_ok(tern_load(&m, rt, "m", repo(TALES), &o));
    tern_close(m);
    o.verify_manifest = "perhaps";
    assert_true(tern_open(&m, repo(TALES), &o) < 0);
    tern_runtime_close(rt);
}

/* An encrypted copy of the model and the file of its key. */
static void make_sealed(char *path, char *key_path, size_t cap)
{
    static const char key[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    struct keyset *keys = NULL;
    struct err e = { 0 };

    snprintf(path, cap, "%s/sealed.gguf", temp_dir());
    snprintf(key_path, cap, "%s", temp_file("model.key", key, sizeof key - 1));
    assert_int_equal(chmod(key_path, 0600), 0);
    if (keyset_parse(&keys, str_c(key), "the test", &e) != OK) fail_msg("%s", e.msg);
    if (sealed_encrypt(repo(TALES), path,
                       &(struct sealed_opt){ .keys = keys, .name = "sealed.gguf" }, &e) != OK)
        fail_msg("%s", e.msg);
    keyset_close(keys);
}

static void an_encrypted_model_opens_with_its_key(void **state)
{
    char path[4000], key_path[4000], command[4096], plain[200], text[200];
    tern_runtime *rt = open_runtime(0);
    tern_model *m = load(rt, "plain");
    tern_options o = small_options();
    tern_params p = greedy(m, 8);
    tern_request *r;

    (void)state;
    make_sealed(path, key_path, sizeof path);
    snprintf(command, sizeof command, "cat %s", key_path);
    r = submit(m, "Once", &p);
    need_ok(read_text(r, plain, sizeof plain));
    tern_request_close(r);
    tern_close(m);
    assert_int_equal(tern_open(&m, path, &o), TERN_E_IO);
    assert_non_null(strstr(tern_error(), "encrypted"));
    assert_int_equal(tern_load(&m, rt, "sealed", path, &o), TERN_E_IO);
    for (int i = 0; i < 4; i++) {
        o.model_key_file = i % 2 ? NULL : key_path;
        o.model_key_command = i % 2 ? command : NULL;
        need_ok(i < 2 ? tern_open(&m, path, &o) : tern_load(&m, rt, i == 2 ? "a" : "b", path, &o));
        r = submit(m, "Once", &p);
        need_ok(read_text(r, text, sizeof text));
        tern_request_close(r);
        assert_string_equal(text, plain);
        tern_close(m);
    }
    o.model_key_file = key_path;
    assert_int_equal(tern_open(&m, path, &o), TERN_E_INVALID); /* one of the two */
    o.model_key_command = NULL;
    o.model_key_file = repo(TALES);
    assert_int_equal(tern_open(&m, path, &o), TERN_E_FORMAT); /* no key in it */
    tern_runtime_close(rt);
}

static void a_load_in_the_background_can_be_waited_for(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_options o = small_options();
    tern_model *m = NULL, *bad = NULL;
    (void)state;

    o.background = 1;
    need_ok(tern_load(&m, rt, "m", repo(TALES), &o));
    need_ok(tern_wait(m, WAIT_MS));
    assert_int_equal(info_of(m).state, TERN_READY);
    need_ok(tern_load(&bad, rt, "bad", repo("README.md"), &o));
    assert_true(tern_wait(bad, WAIT_MS) < 0);
    assert_int_equal(info_of(bad).state, TERN_FAILED);
    tern_close(bad);
    tern_close(m);
    tern_runtime_close(rt);
}

static void closed_handles_leave_requests_and_their_runtime_alive(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_model *m = load(rt, "m");
    tern_params p = greedy(m, 10);
    tern_request *r = submit(m, "Once upon a time", &p);
    char text[1000];
    (void)state;

    tern_close(m);
    assert_int_equal(tern_unload(rt, "m", 0), TERN_AGAIN); /* r uses it */
    tern_runtime_close(rt);
    need_ok(read_text(r, text, sizeof text));
    assert_true(strlen(text) > 5);
    tern_request_close(r);
}

/* ---- events ---- */

static void a_wait_that_is_over_returns_again(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_model *m = load_single(rt, 0);
    tern_params p = greedy(m, 0);
    tern_request *r = submit(m, "The", &p), *waits = submit(m, "The", &p);
    tern_event ev;
    (void)state;

    assert_int_equal(tern_next_wait(waits, &ev, 0), TERN_AGAIN); /* r has the only place */
    assert_int_equal(tern_next_wait(waits, &ev, 20), TERN_AGAIN);
    assert_int_equal(ev.id, -1);
    assert_string_equal(ev.text, "");
    tern_cancel(waits);
    need_ok(tern_next(waits, &ev));
    assert_int_equal(ev.finish, TERN_FINISH_CANCELLED);
    tern_request_close(waits);
    tern_request_close(r);
    tern_close(m);
    tern_runtime_close(rt);
}

static void descriptors_are_readable_when_there_are_events(void **state)
{
    enum { N = 4 };
    static const char *const prompts[N] = { "Once upon a time", "The dog", "A bird", "Lily" };
    tern_runtime *rt = open_runtime(0);
    tern_model *m = load(rt, "m");
    tern_params p = greedy(m, 30);
    tern_request *r[N];
    struct pollfd fds[N];
    char text[N][2000], want[2000];
    int left = N, before = count_fds();
    (void)state;

    for (int i = 0; i < N; i++) {
        r[i] = submit(m, prompts[i], &p);
        text[i][0] = 0;
        fds[i] = (struct pollfd){ .fd = tern_fd(r[i]), .events = POLLIN };
        assert_true(fds[i].fd >= 0);
        assert_int_equal(tern_fd(r[i]), fds[i].fd);
    }
    while (left > 0) {
        assert_true(poll(fds, N, WAIT_MS) > 0);
        for (int i = 0; i < N; i++) {
            tern_event ev;

            if (fds[i].fd < 0 || !fds[i].revents) continue;
            if (tern_next_wait(r[i], &ev, 0) == TERN_AGAIN) continue;
            strcat(text[i], ev.text);
            if (ev.finish == TERN_FINISH_NONE) continue;
            assert_int_equal(poll(&fds[i], 1, 0), 1); /* it stays readable */
            fds[i].fd = -1;
            left--;
        }
    }
    for (int i = 0; i < N; i++) {
        assert_true(strlen(text[i]) > 20);
        tern_request_close(r[i]);
    }
    assert_int_equal(count_fds(), before);
    r[0] = submit(m, prompts[0], &p);
    need_ok(read_text(r[0], want, sizeof want));
    assert_memory_equal(text[0], want, 20);
    tern_request_close(r[0]);
    tern_close(m);
    tern_runtime_close(rt);
}

static void a_descriptor_of_a_request_without_events_is_not_readable(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_model *m = load_single(rt, 0);
    tern_params p = greedy(m, 0);
    tern_request *r = submit(m, "The", &p), *waits = submit(m, "The", &p);
    struct pollfd fd = { .fd = tern_fd(waits), .events = POLLIN };
    tern_event ev;
    (void)state;

    assert_int_equal(poll(&fd, 1, 0), 1); /* when it is opened, there may be something */
    assert_int_equal(tern_next_wait(waits, &ev, 0), TERN_AGAIN);
    assert_int_equal(poll(&fd, 1, 50), 0);
    tern_request_close(r); /* its turn now */
    assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
    need_ok(tern_next_wait(waits, &ev, 0));
    assert_true(ev.id >= 0);
    tern_request_close(waits);
    tern_close(m);
    tern_runtime_close(rt);
}

/* ---- callbacks ---- */

struct sink {
    char text[4000];
    size_t n;
    atomic_int calls;
    int rc;
    tern_finish finish;
    bool closes; /* the request, in the last call */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool over;
    bool holds; /* the first call waits until go */
    bool go;
};

static void sink_init(struct sink *s)
{
    *s = (struct sink){ .calls = 0 };
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->news, NULL);
}

static void on_event(void *arg, tern_request *r, int rc, const tern_event *ev)
{
    struct sink *s = arg;

    atomic_fetch_add(&s->calls, 1);
    pthread_mutex_lock(&s->lock);
    while (s->holds && !s->go) pthread_cond_wait(&s->news, &s->lock);
    s->thread = pthread_self();
    s->rc = rc;
    memcpy(s->text + s->n, ev->text, ev->n);
    s->n += ev->n;
    s->finish = ev->finish;
    if (rc == TERN_OK && ev->finish == TERN_FINISH_NONE) {
        pthread_mutex_unlock(&s->lock);
        return;
    }
    if (s->closes) tern_request_close(r);
    s->over = true;
    pthread_cond_broadcast(&s->news);
    pthread_mutex_unlock(&s->lock);
}

static void sink_wait(struct sink *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->over) pthread_cond_wait(&s->news, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static void callbacks_get_every_event_on_one_thread_of_the_library(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_model *m = load(rt, "m");
    tern_params p = greedy(m, 40);
    static struct sink a, b;
    tern_request *r = submit(m, "Once upon a time", &p), *q = submit(m, "The dog", &p);
    tern_event ev;
    char want[4000];
    (void)state;

    sink_init(&a);
    sink_init(&b);
    b.closes = true;
    need_ok(tern_on_event(r, on_event, &a));
    need_ok(tern_on_event(q, on_event, &b));
    assert_int_equal(tern_next(r, &ev), TERN_E_INVALID);
    assert_int_equal(tern_on_event(r, on_event, &a), TERN_E_INVALID);
    sink_wait(&a);
    sink_wait(&b);
    assert_true(pthread_equal(a.thread, b.thread) && !pthread_equal(a.thread, pthread_self()));
    assert_int_equal(a.finish, TERN_FINISH_LENGTH);
    tern_request_close(r);
    assert_true(atomic_load(&a.calls) >= 40);
    r = submit(m, "Once upon a time", &p);
    need_ok(read_text(r, want, sizeof want));
    a.text[a.n] = 0;
    assert_memory_equal(a.text, want, 20);
    tern_request_close(r);
    tern_close(m);
    tern_runtime_close(rt);
}

/* The last handle is closed by the callback: the thread outlives model and runtime. */
static void a_callback_may_close_the_last_handle(void **state)
{
    tern_model *m = NULL;
    tern_options o = small_options();
    static struct sink s;
    (void)state;

    need_ok(tern_open(&m, repo(TALES), &o));
    tern_params p = greedy(m, 5);
    tern_request *r = submit(m, "Once", &p);
    sink_init(&s);
    s.closes = s.holds = true;
    need_ok(tern_on_event(r, on_event, &s));
    tern_close(m);
    pthread_mutex_lock(&s.lock);
    s.go = true;
    pthread_cond_broadcast(&s.news);
    pthread_mutex_unlock(&s.lock);
    sink_wait(&s);
    assert_int_equal(s.rc, TERN_OK);
}

/* A callback that takes its time: the engine stops its request when the outbox is full, and goes on
 * with others. */
static void a_slow_callback_stops_its_own_request_only(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_options o = small_options();
    tern_model *m = NULL;
    tern_request *r, *q;
    static struct sink s;
    char text[4000];
    (void)state;

    o.context = 4096;
    o.kv_tokens = 8192;
    need_ok(tern_load(&m, rt, "m", repo(TALES), &o));
    tern_params p = greedy(m, 0), few = greedy(m, 10);
    sink_init(&s);
    s.holds = true;
    r = submit(m, "The", &p);
    need_ok(tern_on_event(r, on_event, &s));
    q = submit(m, "Once upon a time", &few);
    need_ok(read_text(q, text, sizeof text));
    assert_int_equal(counts_of(m).n_finished, 1);
    assert_true(atomic_load(&s.calls) <= 1);
    assert_int_equal(counts_of(m).running + counts_of(m).waiting, 1);
    tern_request_close(q);
    tern_cancel(r);
    pthread_mutex_lock(&s.lock);
    s.go = true;
    pthread_cond_broadcast(&s.news);
    pthread_mutex_unlock(&s.lock);
    sink_wait(&s);
    assert_int_equal(s.finish, TERN_FINISH_CANCELLED);
    assert_true(atomic_load(&s.calls) < 4000); /* not the whole context */
    tern_request_close(r);
    tern_close(m);
    tern_runtime_close(rt);
}

/* ---- the queue ---- */

static void with_one_sequence_all_wait_in_one_queue(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_model *m = load_single(rt, 4), *same = NULL;
    tern_params p = greedy(m, 0), few = greedy(m, 5);
    tern_request *r[3], *v = NULL, *refused = NULL;
    tern_message msg = { "user", "Hello" };
    tern_event ev;
    char text[1000];
    (void)state;

    need_ok(tern_find(&same, rt, "single"));
    r[0] = submit(m, "The", &p);
    need_ok(tern_next(r[0], &ev)); /* it runs */
    r[1] = submit(same, "Once upon a time", &few);
    need_ok(tern_submit_chat(&r[2], m, &msg, 1, &few));
    need_ok(tern_submit_embedding(&v, same, "a text", 6, NULL));
    assert_int_equal(tern_submit(&refused, m, "x", 1, &few), TERN_E_QUEUE_FULL);
    assert_null(refused);
    for (int i = 1; i < 3; i++) assert_int_equal(tern_next_wait(r[i], &ev, 0), TERN_AGAIN);
    assert_int_equal(tern_next_wait(v, &ev, 0), TERN_AGAIN);
    wait_waiting(m, 3);
    assert_int_equal(counts_of(m).running, 1);
    assert_int_equal(counts_of(m).n_rejected, 1);
    tern_request_close(r[0]);
    need_ok(read_text(r[1], text, sizeof text));
    need_ok(read_text(r[2], text, sizeof text));
    need_ok(read_text(v, text, sizeof text));
    assert_int_equal(counts_of(m).queue_peak, 3);
    tern_request_close(r[1]);
    tern_request_close(r[2]);
    tern_request_close(v);
    tern_close(same);
    tern_close(m);
    tern_runtime_close(rt);
}

static void a_higher_priority_goes_first_and_a_deadline_ends_a_request(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_model *m = load_single(rt, 0);
    tern_params p = greedy(m, 0), low = greedy(m, 0), high = greedy(m, 3), late = greedy(m, 3);
    tern_request *first, *l, *h, *d;
    tern_event ev;
    char text[1000];
    (void)state;

    low.priority = 0;
    high.priority = 1000;
    late.priority = -1000;
    late.deadline_ms = 30;
    first = submit(m, "The", &p);
    need_ok(tern_next(first, &ev));
    l = submit(m, "The", &low);
    h = submit(m, "Once upon a time", &high);
    d = submit(m, "A bird", &late);
    assert_int_equal(read_text(d, text, sizeof text), TERN_E_DEADLINE); /* while first runs */
    assert_int_equal(tern_next(d, &ev), TERN_E_DEADLINE);               /* and again */
    tern_request_close(first);
    need_ok(read_text(h, text, sizeof text));
    tern_request_close(l);
    tern_request_close(h);
    tern_request_close(d);
    p.priority = 1001;
    assert_int_equal(tern_submit(&d, m, "x", 1, &p), TERN_E_INVALID);
    p.priority = 10, p.deadline_ms = -1;
    assert_int_equal(tern_submit(&d, m, "x", 1, &p), TERN_E_INVALID);
    p.deadline_ms = 0, p.top_logprobs = 21;
    assert_int_equal(tern_submit(&d, m, "x", 1, &p), TERN_E_INVALID);
    tern_close(m);
    tern_runtime_close(rt);
}

/* ---- results ---- */

static void log_probabilities_belong_to_the_sampled_tokens(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_model *m = load(rt, "m");
    tern_params p = greedy(m, 8);
    tern_request *r;
    tern_event ev;
    int n = 0;
    (void)state;

    p.logprobs = 1;
    p.top_logprobs = 5;
    r = submit(m, "Once upon a time", &p);
    do {
        need_ok(tern_next(r, &ev));
        if (ev.id < 0) continue;
        n++;
        assert_int_equal(ev.n_top, 5);
        assert_int_equal(ev.top[0].id, ev.id); /* greedy: the most likely one */
        assert_true(ev.logprob <= 0 && fabsf(ev.logprob - ev.top[0].logprob) < 1e-6f);
        for (int i = 1; i < 5; i++) assert_true(ev.top[i].logprob <= ev.top[i - 1].logprob);
    } while (ev.finish == TERN_FINISH_NONE);
    assert_int_equal(n, 8);
    tern_request_close(r);
    p.top_logprobs = p.logprobs = 0;
    r = submit(m, "Once upon a time", &p);
    need_ok(tern_next(r, &ev));
    assert_int_equal(ev.n_top, 0);
    tern_request_close(r);
    tern_close(m);
    tern_runtime_close(rt);
}

static void an_embedding_is_a_vector_of_length_one(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_model *m = load(rt, "m");
    tern_request *a = NULL, *b = NULL;
    const float *v, *w;
    size_t n = 0, n_w = 0;
    tern_event ev;
    double sum = 0;
    (void)state;

    need_ok(tern_submit_embedding(&a, m, "a frog", 6, NULL));
    need_ok(tern_submit_embedding(&b, m, "a frog", 6, NULL));
    assert_int_equal(tern_vector(a, &v, &n), TERN_E_INVALID); /* not read yet */
    need_ok(tern_next(a, &ev));
    assert_int_equal(ev.finish, TERN_FINISH_STOP);
    need_ok(tern_next(b, &ev));
    need_ok(tern_vector(a, &v, &n));
    need_ok(tern_vector(b, &w, &n_w));
    assert_int_equal(n, info_of(m).embedding);
    assert_int_equal(n, n_w);
    for (size_t i = 0; i < n; i++) sum += (double)v[i] * v[i];
    assert_true(fabs(sum - 1) < 1e-3);
    tern_request_close(a);
    tern_request_close(b);
    tern_close(m);
    tern_runtime_close(rt);
}

/* ---- threads ---- */

struct worker {
    tern_runtime *rt;
    const char *name, *path;
    char text[2000];
    int rc;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    tern_options o = small_options();
    tern_model *m = NULL;
    tern_request *r = NULL;

    for (int i = 0; i < 3; i++) {
        w->rc = tern_load(&m, w->rt, w->name, w->path, &o);
        if (w->rc != TERN_OK) break;
        tern_params p = greedy(m, 8);
        w->rc = tern_submit(&r, m, "Once upon a time", 16, &p);
        if (w->rc == TERN_OK) w->rc = read_text(r, w->text, sizeof w->text);
        tern_request_close(r);
        tern_close(m);
        r = NULL;
        if (w->rc != TERN_OK) break;
    }
    return NULL;
}

/* Two models and room for one: every request loads its model, and each gets the same text. */
static void threads_share_a_runtime_with_room_for_one_of_two_models(void **state)
{
    enum { N = 4 };
    tern_runtime *rt = open_runtime(1);
    struct worker w[N];
    pthread_t t[N];
    (void)state;

    for (int i = 0; i < N; i++) {
        w[i] = (struct worker){ .rt = rt, .name = i % 2 ? "ada" : "bob", .path = repo(TALES) };
        assert_int_equal(pthread_create(&t[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(w[i].rc, TERN_OK);
        assert_memory_equal(w[i].text, w[0].text, 12);
    }
    tern_runtime_close(rt);
}

static void missing_arguments_are_errors(void **state)
{
    tern_runtime *rt = open_runtime(0);
    tern_runtime_options o = { 0 };
    tern_runtime *none = NULL;
    tern_model *m = NULL;
    tern_request *r = NULL;
    tern_event ev;
    tern_usage use;
    tern_counts c;
    char **names;
    const float *v;
    size_t n;
    (void)state;

    assert_int_equal(tern_abi(), TERN_ABI);
    assert_int_equal(tern_runtime_open(NULL, NULL), TERN_E_INVALID);
    assert_int_equal(tern_runtime_open(&none, &o), TERN_E_INVALID);
    assert_int_equal(tern_runtime_usage(NULL, &use), TERN_E_INVALID);
    assert_int_equal(tern_load(&m, NULL, "x", "y", NULL), TERN_E_INVALID);
    assert_int_equal(tern_load(&m, rt, "x", NULL, NULL), TERN_E_INVALID);
    assert_int_equal(tern_load(&m, rt, "", "y", NULL), TERN_E_INVALID);
    assert_int_equal(tern_find(&m, rt, NULL), TERN_E_INVALID);
    assert_int_equal(tern_list(NULL, &names, &n), TERN_E_INVALID);
    assert_int_equal(tern_unload(rt, NULL, 0), TERN_E_INVALID);
    assert_int_equal(tern_wait(NULL, 0), TERN_E_INVALID);
    assert_int_equal(tern_model_counts(NULL, &c), TERN_E_INVALID);
    assert_int_equal(tern_submit_embedding(&r, NULL, "x", 1, NULL), TERN_E_INVALID);
    assert_int_equal(tern_vector(NULL, &v, &n), TERN_E_INVALID);
    assert_int_equal(tern_next_wait(NULL, &ev, 0), TERN_E_INVALID);
    assert_int_equal(tern_fd(NULL), -1);
    assert_int_equal(tern_on_event(NULL, on_event, NULL), TERN_E_INVALID);
    tern_runtime_close(NULL);
    tern_runtime_close(rt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_arguments_are_errors),
        cmocka_unit_test(models_are_loaded_listed_found_and_unloaded_by_name),
        cmocka_unit_test(memory_is_what_the_load_plan_and_the_pool_count),
        cmocka_unit_test(an_unused_model_is_evicted_and_comes_back_with_the_next_request),
        cmocka_unit_test(a_model_over_the_memory_limit_is_refused_and_leaves_nothing),
        cmocka_unit_test(models_have_the_names_that_the_commands_take),
        cmocka_unit_test(a_manifest_that_is_required_must_be_there),
        cmocka_unit_test(an_encrypted_model_opens_with_its_key),
        cmocka_unit_test(a_load_in_the_background_can_be_waited_for),
        cmocka_unit_test(closed_handles_leave_requests_and_their_runtime_alive),
        cmocka_unit_test(a_wait_that_is_over_returns_again),
        cmocka_unit_test(descriptors_are_readable_when_there_are_events),
        cmocka_unit_test(a_descriptor_of_a_request_without_events_is_not_readable),
        cmocka_unit_test(callbacks_get_every_event_on_one_thread_of_the_library),
        cmocka_unit_test(a_callback_may_close_the_last_handle),
        cmocka_unit_test(a_slow_callback_stops_its_own_request_only),
        cmocka_unit_test(with_one_sequence_all_wait_in_one_queue),
        cmocka_unit_test(a_higher_priority_goes_first_and_a_deadline_ends_a_request),
        cmocka_unit_test(log_probabilities_belong_to_the_sampled_tokens),
        cmocka_unit_test(an_embedding_is_a_vector_of_length_one),
        cmocka_unit_test(threads_share_a_runtime_with_room_for_one_of_two_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
