/* Failing allocations, reads, mappings and threads under the functions of tern.h that work with a
 * runtime: loading and unloading by name, callbacks, descriptors, embeddings. fault_engine.c has
 * those of tern_open. */
#include "fault.h"

#include "base/log.h"
#include "tern.h"

#include <pthread.h>

enum { N_PROMPT = 4 };
static const int32_t prompt[N_PROMPT] = { 5, 6, 7, 8 };

static int note(int rc, struct err *e)
{
    if (rc < 0) err_set(e, rc, "%s", tern_error());
    return rc;
}

static int load(tern_model **m, tern_runtime *rt, const char *path)
{
    tern_options o;

    tern_options_init(&o);
    o.threads = 1;
    o.context = 64;
    o.kv_tokens = 256;
    return tern_load(m, rt, "m", path, &o);
}

static int generate(tern_model *m)
{
    tern_request *r = NULL;
    tern_params p;
    tern_event ev = { 0 };
    int rc;

    tern_params_init(&p, m);
    p.max_tokens = 3;
    p.top_logprobs = 2;
    rc = tern_submit_ids(&r, m, prompt, N_PROMPT, &p);
    while (rc == TERN_OK && ev.finish == TERN_FINISH_NONE) rc = tern_next_wait(r, &ev, -1);
    tern_request_close(r);
    return rc;
}

/* Load, find, list, generate, unload. */
static int run_runtime(void *arg, struct err *e)
{
    tern_runtime *rt = NULL;
    tern_model *m = NULL, *same = NULL;
    tern_model_info info;
    char **names = NULL;
    size_t n = 0;
    int rc = tern_runtime_open(&rt, NULL);

    if (rc == TERN_OK) rc = load(&m, rt, arg);
    if (rc == TERN_OK) rc = tern_find(&same, rt, "m");
    if (rc == TERN_OK) rc = tern_list(rt, &names, &n);
    if (rc == TERN_OK) rc = generate(m);
    if (rc == TERN_OK) rc = tern_info(m, &info);
    if (rc == TERN_OK) rc = tern_unload(rt, "m", -1);
    note(rc, e);
    tern_free(names);
    tern_close(same);
    tern_close(m);
    tern_runtime_close(rt);
    return rc;
}

struct end {
    pthread_mutex_t lock;
    pthread_cond_t news;
    int rc;
    bool over;
};

static void on_event(void *arg, tern_request *r, int rc, const tern_event *ev)
{
    struct end *end = arg;

    (void)r;
    if (rc == TERN_OK && ev->finish == TERN_FINISH_NONE) return;
    pthread_mutex_lock(&end->lock);
    end->rc = rc;
    end->over = true;
    pthread_cond_signal(&end->news);
    pthread_mutex_unlock(&end->lock);
}

/* An error of a callback's event is on its thread: the message is taken by the code. */
static int wait_end(struct end *end)
{
    pthread_mutex_lock(&end->lock);
    while (!end->over) pthread_cond_wait(&end->news, &end->lock);
    pthread_mutex_unlock(&end->lock);
    return end->rc;
}

static int run_callback(void *arg, struct err *e)
{
    static struct end end = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false };
    tern_runtime *rt = NULL;
    tern_model *m = NULL;
    tern_request *r = NULL;
    tern_params p;
    int rc = tern_runtime_open(&rt, NULL);

    end.over = false;
    if (rc == TERN_OK) rc = load(&m, rt, arg);
    if (rc == TERN_OK) {
        tern_params_init(&p, m);
        p.max_tokens = 3;
        rc = tern_submit_ids(&r, m, prompt, N_PROMPT, &p);
    }
    if (rc == TERN_OK && tern_fd(r) < 0) rc = TERN_E_IO;
    if (rc == TERN_OK) rc = tern_on_event(r, on_event, &end);
    note(rc, e);
    if (rc == TERN_OK && (rc = wait_end(&end)) != TERN_OK)
        err_set(e, rc, "the request ended with %s", tern_code_name(rc));
    tern_request_close(r);
    tern_close(m);
    tern_runtime_close(rt);
    return rc;
}

/* The model is closed in the scenario: its thread must have dropped its references before the count. */
static int run_embedding(void *arg, struct err *e)
{
    tern_model *m = NULL;
    tern_request *r = NULL;
    tern_event ev;
    const float *v;
    size_t n;
    int rc;

    fault_hold();
    rc = tern_open(&m, arg, NULL);
    fault_release();
    if (rc == TERN_OK) rc = tern_submit_embedding(&r, m, "a frog", 6, NULL);
    if (rc == TERN_OK) rc = tern_next(r, &ev);
    if (rc == TERN_OK) rc = tern_vector(r, &v, &n);
    note(rc, e);
    tern_request_close(r);
    fault_hold();
    tern_close(m);
    fault_release();
    return rc;
}

static void a_runtime_without_memory_returns_an_error(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR + 1);
    fault_run("abi: a runtime", run_runtime, (void *)repo("tests/golden/hf/qwen2"));
    fault_run("abi: callbacks", run_callback, (void *)repo("tests/golden/hf/qwen2"));
    log_set_level(LOG_ERROR);
}

static void an_embedding_without_memory_returns_an_error(void **state)
{
    (void)state;
    fault_run("abi: embedding", run_embedding, (void *)repo("models/tern-tales.gguf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_runtime_without_memory_returns_an_error),
        cmocka_unit_test(an_embedding_without_memory_returns_an_error),
    };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
