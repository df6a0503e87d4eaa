/* The plain C part of the GPU backend under fault injection: the record of a step, the cache of
 * captured steps, the file of measurements. No device is needed. */
#include "fault.h"

#include "kernel/cuda/graphs.h"
#include "kernel/cuda/tuned.h"

#include <stdlib.h>
#include <unistd.h>

static int record_and_cache(void *arg, struct err *e)
{
    static float x[64];
    struct record r = { 0 };
    struct graphs g = { 0 };
    int rc, exec;

    (void)arg;
    if ((rc = record_init(&r, 256, e)) == OK && (rc = graphs_init(&g, e)) == OK) {
        struct backend be = { .name = "record", .self = &r };
        struct tensor t = tensor_f32(x, 4, 16);
        struct graph *slot;

        record_fill_table(&be);
        be.scale(&be, &t, 2);
        slot = graphs_choose(&g, 1);
        assert_true(graphs_keep(slot, &r, record_hash(&r)));
        slot->exec = &exec;
        assert_ptr_equal(graphs_find(&g, &r, record_hash(&r)), slot);
    }
    graphs_release(&g);
    record_release(&r);
    return rc;
}

/* A cache file is optional: without memory there is none. */
static int write_and_read(void *arg, struct err *e)
{
    struct tuned t = { 0 }, back;
    struct buf path = { 0 };
    int rc;

    t.max_tokens_packed[DT_Q4_K][0] = 768, t.max_tokens_packed[DT_Q4_K][1] = 512;
    tuned_path(&path, arg);
    if ((rc = buf_check(&path, e)) == OK) {
        unlink(buf_cstr(&path));
        if (tuned_write(&t, buf_cstr(&path))) {
            if (tuned_read(&back, buf_cstr(&path))) assert_memory_equal(&t, &back, sizeof t);
        } else {
            assert_false(tuned_read(&back, buf_cstr(&path)));
        }
    }
    buf_release(&path);
    return rc;
}

static void records_and_captured_steps(void **state)
{
    (void)state;
    fault_run("record and captured steps", record_and_cache, NULL);
}

static void measurements(void **state)
{
    (void)state;
    fault_pause();
    setenv("XDG_CACHE_HOME", temp_dir(), 1);
    fault_resume();
    fault_run("file of measurements", write_and_read, "a GPU|a driver");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_and_captured_steps),
        cmocka_unit_test(measurements),
    };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
