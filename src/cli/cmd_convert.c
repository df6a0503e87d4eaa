/* tern convert: a Hugging Face folder to GGUF, and back. */
#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/bar.h"
#include "cli/cmd.h"
#include "convert/convert.h"
#include "convert/sums.h"
#include "convert/tohf.h"

#include <stdio.h>
#include <unistd.h>

static const struct verb verb = {
    "convert",
    "tern convert FOLDER FILE.gguf | FILE.gguf FOLDER   [--type F32|F16|BF16|Q8_0]",
    "Writes the Hugging Face folder (config.json, *.safetensors, tokenizer.json) as a GGUF file, "
    "with\n"
    "tokenizer, chat template and sampling settings inside; or a GGUF file as such a folder, its "
    "numbers\n"
    "as they are (quantized ones as F16 unless --type says otherwise). There and back again gives "
    "the same\n"
    "bytes where the types allow it. Results appear whole or not at all and are read back; their "
    "SHA-256\n"
    "is printed, and kept in a folder as SHA256SUMS.\n\n"
    "  tern convert Llama-3.2-1B/ llama-3.2-1b-q8_0.gguf --type Q8_0\n"
    "  tern convert llama-3.2-1b-q8_0.gguf Llama-3.2-1B-again/ --type BF16 --shard-size 2G",
};

struct convert_flags {
    const char *src, *dst, *type, *shard;
    int threads;
    bool json, resume, bare, quiet;
    /* what came of it */
    int n_tensors;
    size_t n_files;
    uint64_t bytes;
    double seconds;
    char sum[65];
    bool no_tokenizer;
};

static void show(void *arg, uint64_t done, uint64_t total, const char *name)
{
    bar_show(arg, done, total, name);
}

static int to_gguf(struct convert_flags *f, enum dtype type, struct err *e)
{
    struct convert_opt opt = { .src = f->src,
                               .dst = f->dst,
                               .type = type,
                               .n_threads = f->threads,
                               .bare = f->bare,
                               .progress = isatty(2) && !f->quiet };
    struct convert_result r = { 0 };
    int rc = convert_to_gguf(&opt, &r, e);

    f->n_tensors = r.n_tensors, f->bytes = r.bytes, f->seconds = r.seconds, f->n_files = 1;
    return rc == OK ? sums_file(f->dst, f->sum, e) : rc;
}

static int to_hf(struct convert_flags *f, enum dtype type, uint64_t shard_bytes, struct err *e)
{
    struct bar bar;
    struct tohf_opt opt = { .src = f->src,
                            .dst = f->dst,
                            .type = type,
                            .shard_bytes = shard_bytes,
                            .n_threads = f->threads,
                            .resume = f->resume,
                            .progress = show,
                            .arg = &bar };
    struct tohf_result r = { 0 };
    int rc;

    bar_begin(&bar, true, f->quiet);
    rc = tohf_run(&opt, &r, e);
    bar_end(&bar);
    f->n_tensors = r.n_tensors, f->bytes = r.bytes, f->seconds = r.seconds, f->n_files = r.n_files;
    f->no_tokenizer = r.no_tokenizer;
    if (rc == OK) rc = sums_folder(f->dst, e);
    if (rc == OK) {
        char *path = path_join(f->dst, "SHA256SUMS");
        rc = sums_file(path, f->sum, e);
        mem_free(path);
    }
    return rc;
}

static int check(const struct convert_flags *f, int n_pos, bool gguf, enum dtype *type,
                 uint64_t *shard, struct err *e)
{
    *type = f->type ? dtype_by_name(str_c(f->type)) : gguf ? DT_NONE : DT_Q8_0;
    *shard = 5000000000u;
    if (n_pos != 2)
        return err_set(e, E_INVALID, "takes a folder and a file to write, or a file and a folder");
    if (f->type && *type != DT_F32 && *type != DT_F16 && *type != DT_BF16 &&
        (*type != DT_Q8_0 || gguf))
        return err_set(e, E_INVALID, "--type takes F32, F16%s, found '%s'",
                       gguf ? " or BF16" : ", BF16 or Q8_0", f->type);
    if (f->shard && !cmd_size(f->shard, shard))
        return err_set(e, E_INVALID, "--shard-size takes bytes such as 2G or 500M, found '%s'",
                       f->shard);
    if (!gguf && file_is_dir(f->dst))
        return err_set(e, E_INVALID, "%s is a folder, expected a file name", f->dst);
    if (gguf && str_ends(str_c(f->dst), STR(".gguf")))
        return err_set(e, E_INVALID, "%s is GGUF already: tern quantize changes its number format",
                       f->src);
    return OK;
}

static void tell(const struct convert_flags *f, const char *type)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };

    if (f->no_tokenizer)
        fprintf(
            stderr,
            "tern: its kind of tokenizer cannot be told as tokenizer.json: the folder has none\n");
    if (!f->json) {
        fprintf(stderr, "%s: %d tensors, %.1f MiB of weights, %s, %.1f s, read back\nsha256 %s%s\n",
                f->dst, f->n_tensors, (double)f->bytes / 1048576, type, f->seconds, f->sum,
                f->n_files != 1 || file_is_dir(f->dst) ? " (of SHA256SUMS)" : "");
        return;
    }
    jsonw_obj(&w);
    jsonw_key(&w, "path"), jsonw_str(&w, str_c(f->dst));
    jsonw_key(&w, "type"), jsonw_str(&w, str_c(type));
    jsonw_key(&w, "tensors"), jsonw_int(&w, f->n_tensors);
    jsonw_key(&w, "files"), jsonw_int(&w, (int64_t)f->n_files);
    jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)f->bytes);
    jsonw_key(&w, "seconds"), jsonw_num(&w, f->seconds);
    jsonw_key(&w, "sha256"), jsonw_str(&w, str_c(f->sum));
    jsonw_end(&w);
    puts(buf_cstr(&out));
    buf_release(&out);
}

static bool is_gguf(const char *path)
{
    struct filemap m = { 0 };
    bool is = !file_is_dir(path) && filemap_open(&m, path, NULL) == OK && m.n >= 4 &&
              memcmp(m.p, "GGUF", 4) == 0;

    filemap_release(&m);
    return is;
}

int cmd_convert(int argc, char **argv)
{
    struct convert_flags f = { 0 };
    const char *pos[2] = { 0 };
    bool helped, gguf;
    const struct arg table[] = {
        { "--type", NULL, ARG_STR, &f.type, "T",
          "number format of the matrices: F32 F16 BF16 Q8_0 (to GGUF: Q8_0)" },
        { "--shard-size", NULL, ARG_STR, &f.shard, "SIZE",
          "folder: files of at most so much (5G)" },
        { "--resume", NULL, ARG_FLAG, &f.resume, NULL,
          "folder: keep whole shards of an earlier run" },
        { "--bare", NULL, ARG_FLAG, &f.bare, NULL,
          "to GGUF: without the copies of config.json and tokenizer.json that only tern reads" },
        { "--threads", "-t", ARG_INT, &f.threads, "N", "threads (default: physical cores)" },
        { "--json", NULL, ARG_FLAG, &f.json, NULL, "the result as a JSON line" },
        { "--quiet", "-q", ARG_FLAG, &f.quiet, NULL, "no progress" },
        { 0 },
    };
    struct err e = { 0 };
    enum dtype type;
    uint64_t shard;
    int n_pos;

    if (args_parse(&verb, table, argc, argv, pos, 2, &n_pos, &helped, &e) != OK)
        return cmd_usage("convert", &e);
    if (helped) return EXIT_OK;
    f.src = pos[0], f.dst = pos[1];
    if (n_pos > 0 && cmd_model(&f.src, &e) != OK) return cmd_fail(&e);
    gguf = n_pos > 0 && is_gguf(f.src);
    if (check(&f, n_pos, gguf, &type, &shard, &e) != OK) return cmd_usage("convert", &e);
    if ((gguf ? to_hf(&f, type, shard, &e) : to_gguf(&f, type, &e)) != OK) return cmd_fail(&e);
    tell(&f, type == DT_NONE ? "as they are" : dtype_name((int)type));
    return EXIT_OK;
}
