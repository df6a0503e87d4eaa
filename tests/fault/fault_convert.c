/* Conversion without memory: Hugging Face folder to GGUF, GGUF to folder, and quantization of both.
 * A failed run must leave no file under the output's name. */
#include "fault.h"

#include "base/file.h"
#include "base/mem.h"
#include "convert/quantize.h"
#include "convert/togguf.h"
#include "convert/tohf.h"
#include "format/manifest.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FOLDER "tests/golden/hf/qwen2"

static char tmp[] = "/tmp/fault_convert.XXXXXX";
static char gguf[64], out_gguf[64], out_folder[64];

static int convert_to_gguf(void *arg, struct err *e)
{
    struct togguf_opt opt = { .src = FOLDER, .dst = out_gguf, .type = DT_F16, .n_threads = 1 };
    struct togguf_result r;
    int rc = togguf_run(&opt, &r, e);

    (void)arg;
    if (rc == OK) assert_true(r.n_tensors > 10 && file_exists(out_gguf));
    unlink(out_gguf);
    return rc;
}

static int convert_to_folder(void *arg, struct err *e)
{
    struct tohf_opt opt = {
        .src = gguf, .dst = out_folder, .shard_bytes = 1 << 30, .n_threads = 1
    };
    struct tohf_result r;
    int rc = tohf_run(&opt, &r, e);

    (void)arg;
    if (rc == OK)
        rc = manifest_write(out_folder, &(struct manifest_opt){ .n_threads = 1 }, NULL, e);
    return rc;
}

static int quantize(const char *in, struct err *e)
{
    struct quantize q = { .in = in, .out = out_gguf, .n_threads = 1, .measure = true };
    int rc;

    q.plan_opt.mix = plan_mix_by_name(STR("Q8_0"));
    rc = quantize_open(&q, e);
    if (rc == OK) rc = quantize_run(&q, e);
    quantize_release(&q);
    unlink(out_gguf);
    return rc;
}

static int quantize_folder(void *arg, struct err *e)
{
    (void)arg;
    return quantize(FOLDER, e);
}

static int quantize_gguf(void *arg, struct err *e)
{
    (void)arg;
    return quantize(gguf, e);
}

/* The folder has the input only: no output, no temporary file. */
static void assert_nothing_left(const char *folder)
{
    glob_t found;
    char pattern[80];

    snprintf(pattern, sizeof pattern, "%s/*part-*", folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), GLOB_NOMATCH);
    globfree(&found);
    assert_false(file_exists(out_gguf));
}

static void a_folder_becomes_gguf_or_an_error(void **state)
{
    (void)state;
    fault_run("folder to GGUF", convert_to_gguf, NULL);
    assert_nothing_left(tmp);
}

static void a_gguf_file_becomes_a_folder_or_an_error(void **state)
{
    (void)state;
    fault_run("GGUF to folder", convert_to_folder, NULL);
    assert_nothing_left(out_folder);
}

static void a_model_is_quantized_or_an_error(void **state)
{
    (void)state;
    fault_run("quantize a folder", quantize_folder, NULL);
    fault_run("quantize a GGUF file", quantize_gguf, NULL);
    assert_nothing_left(tmp);
}

static int make_folder(void **state)
{
    struct togguf_opt opt = { .src = FOLDER, .dst = gguf, .type = DT_F16, .n_threads = 1 };
    struct togguf_result r;

    (void)state;
    if (!mkdtemp(tmp)) return -1;
    snprintf(gguf, sizeof gguf, "%s/in.gguf", tmp);
    snprintf(out_gguf, sizeof out_gguf, "%s/out.gguf", tmp);
    snprintf(out_folder, sizeof out_folder, "%s/out", tmp);
    return togguf_run(&opt, &r, NULL);
}

static int remove_folder(void **state)
{
    char command[100];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", tmp);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_becomes_gguf_or_an_error),
        cmocka_unit_test(a_gguf_file_becomes_a_folder_or_an_error),
        cmocka_unit_test(a_model_is_quantized_or_an_error),
    };
    fault_init();
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
