/* Encrypted files: what was encrypted is read again by all readers, and every changed byte, every
 * chunk in another place and every wrong key is refused with an error that names the file. */
#include "base/sealed.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/ggufw.h"
#include "format/source.h"
#include "support.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_A "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define KEY_B "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

enum { CHUNK = 4096, TAG = CRYPTO_TAG };

static struct err e;

static struct keyset *make_keys(const char *text)
{
    struct keyset *k = NULL;

    if (keyset_parse(&k, str_c(text), "keys", &e) != OK) fail_msg("%s", e.msg);
    return k;
}

/* Keys in the ring, until they are closed. */
static struct keyset *join_keys(const char *text)
{
    struct keyset *k = make_keys(text);

    keyset_join(k);
    return k;
}

static const char *new_path(void)
{
    static char path[8][300];
    static int n;

    snprintf(path[n % 8], sizeof path[0], "%s/sealed%d", temp_dir(), n);
    return path[n++ % 8];
}

static unsigned char *make_bytes(size_t n)
{
    unsigned char *p = mem_alloc(n ? n : 1);

    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)(i * 7 + i / 251 + (i >> 12));
    return p;
}

/* An encrypted file of n known bytes, in small chunks. */
static const char *encrypt_bytes(size_t n, const char *keys, const char *name)
{
    unsigned char *p = make_bytes(n);
    const char *plain = temp_file("plain", p, n), *path = new_path();
    struct keyset *k = make_keys(keys);
    struct sealed_opt opt = { .keys = k, .chunk_bytes = CHUNK, .name = name };

    if (sealed_encrypt(plain, path, &opt, &e) != OK) fail_msg("%s", e.msg);
    keyset_close(k);
    mem_free(p);
    return path;
}

static void read_file(struct buf *b, const char *path)
{
    FILE *f = fopen(path, "rb");
    char piece[4096];
    size_t n;

    assert_non_null(f);
    while ((n = fread(piece, 1, sizeof piece, f)) > 0) buf_add(b, piece, n);
    fclose(f);
}

static void write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

static void expect_refused(const char *path, int code, const char *words)
{
    struct filemap m = { 0 };
    int rc = filemap_open(&m, path, &e);

    if (rc != code) fail_msg("%d, expected %d: %s", rc, code, rc ? e.msg : "accepted");
    if (!strstr(e.msg, words) || !strstr(e.msg, path_base(path)))
        fail_msg("no '%s' and '%s' in '%s'", words, path_base(path), e.msg);
    filemap_release(&m);
}

static void expect_bytes(const char *path, size_t n)
{
    unsigned char *p = make_bytes(n);
    struct filemap m = { 0 };
    struct buf b = { 0 };

    if (filemap_open(&m, path, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(m.n, n);
    if (n) assert_memory_equal(m.p, p, n);
    assert_int_equal(filemap_check(&m, true, path, &e), OK);
    filemap_drop(m.p, m.n); /* cannot be read again: it stays */
    if (n) assert_memory_equal(m.p, p, n);
    filemap_release(&m);
    if (file_read(&b, path, 1 << 20, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(b.n, n);
    if (n) assert_memory_equal(b.p, p, n);
    buf_release(&b);
    mem_free(p);
}

/* ---- reading ---- */

static void what_was_encrypted_is_read_again(void **state)
{
    static const size_t sizes[] = {
        0, 1, 15, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5
    };
    struct keyset *k = join_keys(KEY_A);
    struct buf b = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *path = encrypt_bytes(sizes[i], KEY_A, NULL), *back = new_path();
        struct stat st;

        expect_bytes(path, sizes[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size,
                         SEALED_START + sizes[i] + (sizes[i] + CHUNK - 1) / CHUNK * TAG);
        assert_int_equal(sealed_decrypt(path, back, NULL, &e), OK);
        expect_bytes(back, sizes[i]);
    }
    assert_int_equal(file_read(&b, encrypt_bytes(100, KEY_A, NULL), 99, &e), E_FORMAT);
    buf_release(&b);
    keyset_close(k);
}

static void the_same_bytes_are_never_encrypted_alike(void **state)
{
    struct buf a = { 0 }, b = { 0 };

    (void)state;
    read_file(&a, encrypt_bytes(CHUNK, KEY_A, NULL));
    read_file(&b, encrypt_bytes(CHUNK, KEY_A, NULL));
    assert_int_equal(a.n, b.n);
    assert_memory_not_equal(a.p + SEALED_START, b.p + SEALED_START, CHUNK);
    buf_release(&a);
    buf_release(&b);
}

static void the_beginning_is_decrypted_alone(void **state)
{
    struct keyset *k = join_keys(KEY_A);
    const char *path = encrypt_bytes(10 * CHUNK + 7, KEY_A, NULL);
    unsigned char *p = make_bytes(10 * CHUNK + 7);
    struct filemap m = { 0 };

    (void)state;
    assert_int_equal(filemap_open_head(&m, path, CHUNK + 1, &e), OK);
    keyset_close(k); /* the open file has what it needs */
    assert_int_equal(m.n, 10 * CHUNK + 7);
    assert_int_equal(m.n_ready, 2 * CHUNK);
    assert_true(filemap_is_sealed(&m));
    assert_memory_equal(m.p, p, 2 * CHUNK);
    assert_int_equal(m.p[2 * CHUNK + 1], 0);
    assert_int_equal(filemap_fill(&m, SIZE_MAX, NULL, NULL, &e), OK);
    assert_int_equal(m.n_ready, m.n);
    assert_memory_equal(m.p, p, m.n);
    filemap_release(&m);
    mem_free(p);
}

/* ---- changes ---- */

static void every_changed_byte_of_the_header_is_refused(void **state)
{
    struct keyset *k = join_keys(KEY_A);
    const char *path = encrypt_bytes(100, KEY_A, NULL);
    struct buf b = { 0 };
    int n_format = 0;

    (void)state;
    read_file(&b, path);
    for (int i = 0; i < SEALED_START; i += THIN) {
        struct filemap m = { 0 };
        int fd = open(path, O_WRONLY), rc;
        unsigned char x = (unsigned char)((unsigned char)b.p[i] ^ (1 + i % 255));

        assert_int_equal(pwrite(fd, &x, 1, i), 1);
        rc = filemap_open(&m, path, &e);
        if (i < 8) n_format += rc == OK; /* without the magic number it is another file */
        else if (rc == OK) fail_msg("byte %d of the header was changed unnoticed", i);
        else assert_non_null(strstr(e.msg, path_base(path)));
        filemap_release(&m);
        assert_int_equal(pwrite(fd, b.p + i, 1, i), 1);
        close(fd);
    }
    assert_true(n_format > 0);
    expect_bytes(path, 100);
    buf_release(&b);
    keyset_close(k);
}

static void every_changed_byte_of_a_chunk_is_refused(void **state)
{
    struct keyset *k = join_keys(KEY_A);
    const char *path = encrypt_bytes(CHUNK + 40, KEY_A, NULL);
    struct buf b = { 0 };

    (void)state;
    read_file(&b, path);
    for (size_t i = SEALED_START; i < b.n; i += 3 * THIN) {
        int fd = open(path, O_WRONLY);
        unsigned char x = (unsigned char)((unsigned char)b.p[i] ^ 0x10);

        assert_int_equal(pwrite(fd, &x, 1, (off_t)i), 1);
        expect_refused(path, E_DAMAGED,
                       i < SEALED_START + CHUNK + TAG ? "chunk 1 of 2" : "chunk 2 of 2");
        assert_int_equal(pwrite(fd, b.p + i, 1, (off_t)i), 1);
        close(fd);
    }
    expect_bytes(path, CHUNK + 40);
    buf_release(&b);
    keyset_close(k);
}

static void chunks_stay_in_their_place_and_file(void **state)
{
    enum { STEP = CHUNK + TAG };
    struct keyset *k = join_keys(KEY_A);
    const char *path = encrypt_bytes(4 * CHUNK, KEY_A, NULL),
               *other = encrypt_bytes(4 * CHUNK, KEY_A, NULL);
    struct buf b = { 0 }, c = { 0 };
    char *at;

    (void)state;
    read_file(&b, path);
    read_file(&c, other);
    at = b.p + SEALED_START;
    for (int i = 0; i < STEP; i++) { /* two change places */
        char x = at[i];
        at[i] = at[STEP + i], at[STEP + i] = x;
    }
    write_file(path, b.p, b.n);
    expect_refused(path, E_DAMAGED, "chunk 1 of 4");
    b.n = 0;
    write_file(path, c.p, c.n);
    read_file(&b, path);
    memcpy(b.p + SEALED_START + 2 * STEP, b.p + SEALED_START + STEP, STEP); /* one is repeated */
    write_file(path, b.p, b.n);
    expect_refused(path, E_DAMAGED, "chunk 3 of 4");
    write_file(path, c.p, c.n - STEP); /* the last is missing */
    expect_refused(path, E_DAMAGED, "truncated or extended");
    write_file(path, c.p, c.n - 1);
    expect_refused(path, E_DAMAGED, "truncated or extended");
    write_file(path, c.p, 9000); /* within the header */
    expect_refused(path, E_DAMAGED, "ends within its header");
    write_file(path, c.p, 8);
    expect_refused(path, E_DAMAGED, "ends within its header");
    buf_release(&b);
    read_file(&b, encrypt_bytes(4 * CHUNK, KEY_A, NULL));
    memcpy(b.p + SEALED_START, c.p + SEALED_START, STEP); /* the first is another file's */
    write_file(path, b.p, b.n);
    expect_refused(path, E_DAMAGED, "chunk 1 of 4");
    buf_puts(&c, "x");
    write_file(path, c.p, c.n);
    expect_refused(path, E_DAMAGED, "truncated or extended");
    buf_release(&b);
    buf_release(&c);
    keyset_close(k);
}

static void a_file_of_a_folder_keeps_its_name(void **state)
{
    struct keyset *k = join_keys(KEY_A);
    const char *path = encrypt_bytes(10, KEY_A, "onnx/model.onnx");
    char dir[400], to[500];

    (void)state;
    expect_refused(path, E_DAMAGED, "was encrypted as 'onnx/model.onnx'");
    snprintf(dir, sizeof dir, "%s/onnx", temp_dir());
    mkdir(dir, 0755);
    snprintf(to, sizeof to, "%s/model.onnx", dir);
    assert_int_equal(rename(path, to), 0);
    expect_bytes(to, 10);
    keyset_close(k);
}

/* ---- keys ---- */

static void a_wrong_key_is_refused_by_its_id(void **state)
{
    const char *path = encrypt_bytes(10, KEY_A, NULL);
    struct keyset *a = make_keys(KEY_A), *b;
    char id_a[KEY_ID_HEX], id_b[KEY_ID_HEX];

    (void)state;
    crypto_hex(id_a, keyset_id(a, 0), KEY_ID);
    expect_refused(path, E_IO, "--model-key-file or --model-key-command");
    expect_refused(path, E_IO, id_a);
    b = join_keys(KEY_B);
    crypto_hex(id_b, keyset_id(b, 0), KEY_ID);
    expect_refused(path, E_IO, "wrong key");
    expect_refused(path, E_IO, id_a);
    expect_refused(path, E_IO, id_b);
    keyset_join(a);
    expect_bytes(path, 10);
    keyset_close(a);
    expect_refused(path, E_IO, "wrong key");
    keyset_close(b);
    assert_null(strstr(e.msg, "0011223344"));
}

static void several_keys_open_a_file(void **state)
{
    const char *path = encrypt_bytes(10, "# two\n" KEY_A "\n\n  " KEY_B "\n", NULL);
    struct keyset *k = join_keys(KEY_A);

    (void)state;
    expect_bytes(path, 10);
    keyset_close(k);
    k = join_keys(KEY_B);
    expect_bytes(path, 10);
    keyset_close(k);
}

static void keys_are_hex_digits_or_random_bytes(void **state)
{
    static const char *const bad[] = {
        "",
        "\n",
        "secret",
        "0123456789abcdef0123456789abcde\n", /* 32 bytes of text */
        KEY_A "0",
        KEY_A " " KEY_B,
        "g0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
    };
    unsigned char raw[CRYPTO_KEY] = { 1, 2, 3, 0xff };
    struct keyset *k = NULL;
    struct buf nine = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(keyset_parse(&k, str_c(bad[i]), "key.txt", &e), E_FORMAT);
        assert_non_null(strstr(e.msg, "key.txt: line "));
        assert_null(strstr(e.msg, "0123456789")); /* a key is not quoted */
    }
    assert_int_equal(keyset_parse(&k, str_of((char *)raw, sizeof raw), "key", &e), OK);
    assert_memory_equal(keyset_key(k, 0), raw, sizeof raw);
    keyset_close(k);
    for (int i = 0; i < 9; i++) buf_puts(&nine, KEY_A "\n");
    assert_int_equal(keyset_parse(&k, buf_str(&nine), "key", &e), E_FORMAT);
    buf_release(&nine);
    assert_int_equal(keyset_open(&k, "", NULL, 0, &e), OK);
    assert_null(k);
    assert_int_equal(keyset_open(&k, "a", "b", 0, &e), E_INVALID);
    assert_int_equal(keyset_open(&k, "/nowhere/key", NULL, 0, &e), E_NOTFOUND);
}

static void a_command_prints_a_key(void **state)
{
    struct keyset *k = NULL;

    (void)state;
    assert_int_equal(keyset_open(&k, NULL, "echo " KEY_A, 0, &e), OK);
    assert_int_equal(keyset_n(k), 1);
    keyset_close(k);
    assert_int_equal(keyset_open(&k, NULL, "echo " KEY_A "; exit 3", 0, &e), E_IO);
    assert_non_null(strstr(e.msg, "exited with code 3"));
    assert_null(strstr(e.msg, "00112233"));
    assert_int_equal(keyset_open(&k, NULL, "echo hello", 0, &e), E_FORMAT);
    assert_int_equal(keyset_open(&k, NULL, "yes", 0, &e), E_IO);
    assert_int_equal(keyset_open(&k, NULL, "sleep 1000 & sleep 1000", 300, &e), E_IO);
    assert_non_null(strstr(e.msg, "within 300 ms"));
}

/* ---- other keys ---- */

static void rekey_rewrites_the_header_only(void **state)
{
    const char *path = encrypt_bytes(3 * CHUNK, KEY_A, NULL);
    struct keyset *a = join_keys(KEY_A), *b = make_keys(KEY_B);
    struct buf before = { 0 }, after = { 0 };

    (void)state;
    read_file(&before, path);
    assert_int_equal(sealed_rekey(path, b, false, &e), OK);
    read_file(&after, path);
    assert_int_equal(before.n, after.n);
    assert_memory_equal(before.p + SEALED_START, after.p + SEALED_START, after.n - SEALED_START);
    assert_memory_equal(after.p, after.p + SEALED_HEAD, SEALED_HEAD);
    expect_refused(path, E_IO, "wrong key");
    assert_int_equal(sealed_rekey(path, b, false, &e), E_IO); /* who cannot open it cannot */
    keyset_join(b);
    expect_bytes(path, 3 * CHUNK);
    keyset_close(a);
    keyset_close(b);
    buf_release(&before);
    buf_release(&after);
}

static void keys_are_added_and_removed(void **state)
{
    const char *path = encrypt_bytes(10, KEY_A, NULL);
    struct keyset *a = join_keys(KEY_A), *b = make_keys(KEY_B);
    unsigned char none[KEY_ID] = { 0 };
    struct sealed_head h;

    (void)state;
    assert_int_equal(sealed_rekey(path, b, true, &e), OK);
    assert_int_equal(sealed_rekey(path, b, true, &e), OK); /* once */
    assert_int_equal(sealed_peek(&h, path, &e), OK);
    assert_int_equal(h.n_slots, 2);
    assert_int_equal(h.generation, 3);
    assert_int_equal(sealed_drop_key(path, none, &e), E_NOTFOUND);
    assert_int_equal(sealed_drop_key(path, keyset_id(a, 0), &e), OK);
    expect_refused(path, E_IO, "wrong key");
    keyset_join(b);
    assert_int_equal(sealed_drop_key(path, keyset_id(b, 0), &e), E_INVALID); /* the last */
    expect_bytes(path, 10);
    keyset_close(a);
    keyset_close(b);
}

/* All states in which a crash can leave the file, with a header half written, too. */
static void a_crash_leaves_the_old_keys_or_the_new_ones(void **state)
{
    const char *path = encrypt_bytes(100, KEY_A, NULL);
    struct keyset *a = join_keys(KEY_A), *b = make_keys(KEY_B);
    struct buf old = { 0 }, new = { 0 };
    unsigned char file[SEALED_START + 100 + TAG];

    (void)state;
    read_file(&old, path);
    assert_int_equal(sealed_rekey(path, b, false, &e), OK);
    read_file(&new, path);
    assert_int_equal(new.n, sizeof file);
    for (int step = 0; step < 3;
         step++) /* before the first header, before the second, after both */
        for (int half = 0; half < 3; half++) {
            size_t done = (size_t)step * SEALED_HEAD + (half == 1 ? 330 : half == 2 ? 700 : 0);
            if (step == 2 && half) continue;
            memcpy(file, new.p, sizeof file);
            memcpy(file + done, old.p + done, 2 * SEALED_HEAD - done);
            memset(file + 2 * SEALED_HEAD, 0, SEALED_HEAD);
            memcpy(file + 2 * SEALED_HEAD, "TERN REKEY IN PROGRESS", 22);
            memcpy(file + 2 * SEALED_HEAD + 64, file + 24, SEALED_FILE_ID);
            write_file(path, file, sizeof file);
            if (step == 0 || (step == 1 && half == 0)) expect_bytes(path, 100); /* by the old key */
            keyset_join(b);
            expect_bytes(path, 100);                                /* by one of both */
            assert_int_equal(sealed_rekey(path, b, false, &e), OK); /* and it can be finished */
            keyset_close(a);
            expect_bytes(path, 100);
            a = join_keys(KEY_A);
            keyset_close(b);
            b = make_keys(KEY_B);
            expect_refused(path, E_IO, "wrong key");
        }
    /* Without the mark, two different headers are damage. */
    memcpy(file, new.p, sizeof file);
    memcpy(file, old.p, SEALED_HEAD);
    write_file(path, file, sizeof file);
    expect_refused(path, E_DAMAGED, "two copies differ");
    keyset_close(a);
    keyset_close(b);
    buf_release(&old);
    buf_release(&new);
}

static void what_is_encrypted_is_not_encrypted_again(void **state)
{
    const char *path = encrypt_bytes(10, KEY_A, NULL), *out = new_path();
    struct keyset *k = make_keys(KEY_A);

    (void)state;
    assert_int_equal(sealed_encrypt(path, out, &(struct sealed_opt){ .keys = k }, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "is encrypted already"));
    assert_int_equal(access(out, F_OK), -1);
    assert_int_equal(sealed_encrypt(path, out, &(struct sealed_opt){ 0 }, &e), E_INVALID);
    keyset_close(k);
}

/* ---- models ---- */

static uint64_t filled, to_fill;

static void on_filled(void *arg, uint64_t done, uint64_t total)
{
    assert_null(arg);
    assert_true(done > filled && done <= total);
    filled = done, to_fill = total;
}

static void compare_sources(const char *plain, const char *path)
{
    struct source *a = NULL, *b = NULL;
    struct keyset *k = join_keys(KEY_A);

    if (source_open(&a, plain, &e) != OK) fail_msg("%s", e.msg);
    if (source_open_head(&b, path, &e) != OK) fail_msg("%s", e.msg);
    keyset_close(k);
    assert_true(source_is_sealed(b) && !source_is_sealed(a));
    assert_int_equal(source_n_tensors(a), source_n_tensors(b));
    assert_int_equal(source_n_keys(a), source_n_keys(b));
    filled = to_fill = 0;
    if (source_fill(b, on_filled, NULL, &e) != OK) fail_msg("%s", e.msg);
    assert_true(to_fill > 0 && filled == to_fill);
    for (size_t i = 0; i < source_n_tensors(a); i++) {
        const struct source_tensor *x = source_tensor(a, i), *y = source_tensor(b, i);
        assert_true(str_eq(x->name, y->name));
        assert_memory_equal(x->data, y->data, x->bytes);
    }
    assert_false(source_is_damaged(b, &e));
    source_close(a);
    source_close(b);
}

static void encrypt_to(const char *from, const char *to, const char *name)
{
    struct keyset *k = make_keys(KEY_A);
    struct sealed_opt opt = { .keys = k, .chunk_bytes = 1 << 16, .name = name };

    if (sealed_encrypt(from, to, &opt, &e) != OK) fail_msg("%s", e.msg);
    keyset_close(k);
}

static void a_gguf_file_is_read_from_memory(void **state)
{
    const char *path = new_path();

    (void)state;
    encrypt_to(repo("models/tern-tales.gguf"), path, NULL);
    compare_sources(repo("models/tern-tales.gguf"), path);
}

/* Keys of more than a megabyte: the parser asks for more of the file, and starts again. */
static void a_gguf_file_with_many_keys_is_read(void **state)
{
    enum { N = 150000 };
    const char *plain = new_path(), *path = new_path();
    struct str *words = mem_array(N, sizeof *words);
    struct ggufw *w = NULL;
    static float data[65536];

    (void)state;
    for (int i = 0; i < N; i++) words[i] = STR("a word of the vocabulary");
    assert_int_equal(ggufw_open(&w, plain, &e), OK);
    ggufw_strs(w, "tokenizer.ggml.tokens", words, N);
    ggufw_u32(w, "last", 17);
    ggufw_tensor(w, "t", DT_F32, (int64_t[]){ 4096, 1024 }, 2);
    for (int i = 0; i < 65536; i++) data[i] = (float)i;
    for (int i = 0; i < 64; i++) ggufw_data(w, data, sizeof data);
    assert_int_equal(ggufw_close(w, &e), OK);
    mem_free(words);
    encrypt_to(plain, path, NULL);
    compare_sources(plain, path);
}

static void a_folder_is_read_from_memory(void **state)
{
    static const char *const files[] = { "config.json", "model.safetensors" };
    char dir[300], to[400], from[400];

    (void)state;
    snprintf(dir, sizeof dir, "%s/folder", temp_dir());
    mkdir(dir, 0755);
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, "%s/%s", repo("tests/golden/hf/qwen2"), files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        encrypt_to(from, to, files[i]);
    }
    compare_sources(repo("tests/golden/hf/qwen2"), dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_encrypted_is_read_again),
        cmocka_unit_test(the_same_bytes_are_never_encrypted_alike),
        cmocka_unit_test(the_beginning_is_decrypted_alone),
        cmocka_unit_test(every_changed_byte_of_the_header_is_refused),
        cmocka_unit_test(every_changed_byte_of_a_chunk_is_refused),
        cmocka_unit_test(chunks_stay_in_their_place_and_file),
        cmocka_unit_test(a_file_of_a_folder_keeps_its_name),
        cmocka_unit_test(a_wrong_key_is_refused_by_its_id),
        cmocka_unit_test(several_keys_open_a_file),
        cmocka_unit_test(keys_are_hex_digits_or_random_bytes),
        cmocka_unit_test(a_command_prints_a_key),
        cmocka_unit_test(rekey_rewrites_the_header_only),
        cmocka_unit_test(keys_are_added_and_removed),
        cmocka_unit_test(a_crash_leaves_the_old_keys_or_the_new_ones),
        cmocka_unit_test(what_is_encrypted_is_not_encrypted_again),
        cmocka_unit_test(a_gguf_file_is_read_from_memory),
        cmocka_unit_test(a_gguf_file_with_many_keys_is_read),
        cmocka_unit_test(a_folder_is_read_from_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
