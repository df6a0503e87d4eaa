/* ops.c - Python's operators on template values.
 *
 * Integers have 64 bits; an overflow is an error where Python's would grow. Division and modulo
 * round towards negative infinity. Errors have Python's messages. */
#include "jinja/builtins.h"
#include "jinja/iter.h"
#include "jinja/render.h"

#include <math.h>

static struct jval fail_overflow(struct render *r)
{
    return jv_fail(r, "an integer does not fit into 64 bits");
}

/* Python's TypeError for an operator. */
static struct jval fail_operands(struct render *r, const char *op, struct jval a, struct jval b)
{
    return jv_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", op, jv_type(a),
                   jv_type(b));
}

/* ---- sequences ---- */

/* If one side is Markup, the other is escaped and the result is Markup. */
static struct jval add_str(struct render *r, struct jval a, struct jval b)
{
    bool markup = (a.flags | b.flags) & JV_MARKUP;
    struct jtext t = { .r = r };
    struct jval out;

    if (markup && !(a.flags & JV_MARKUP)) a = text_escape(r, a);
    if (markup && !(b.flags & JV_MARKUP)) b = text_escape(r, b);
    /* An empty side costs no copy: templates often append to a text that starts empty. */
    if (b.s.n == 0) return a.flags = markup ? JV_MARKUP : 0, a;
    if (a.s.n == 0) return b.flags = markup ? JV_MARKUP : 0, b;
    if (!(t.p = jv_alloc(r, a.s.n + b.s.n))) return a;
    t.cap = a.s.n + b.s.n;
    jtext_add(&t, a.s);
    jtext_add(&t, b.s);
    out = jtext_done(&t);
    out.flags = markup ? JV_MARKUP : 0;
    return out;
}

/* Two lists or two tuples: a new one. */
static struct jval add_lists(struct render *r, struct jval a, struct jval b)
{
    struct jval out = a.kind == J_LIST ? jv_list(r, a.l->n + b.l->n) : jv_tuple(r, a.l->n + b.l->n);

    for (size_t i = 0; i < a.l->n; i++) jlist_push(r, out.l, a.l->v[i]);
    for (size_t i = 0; i < b.l->n; i++) jlist_push(r, out.l, b.l->v[i]);
    jv_step(r, out.l->n / 8);
    return out;
}

/* s * times */
static struct jval repeat_sequence(struct render *r, struct jval s, int64_t times)
{
    struct jtext t = { .r = r };
    struct jval out;

    if (times < 0) times = 0;
    if (s.kind == J_STR) {
        /* Charged before the text is made. */
        jv_step(r, (size_t)(times < 1 << 30 ? times : 1 << 30) / 8);
        jtext_fill(&t, s.s, times);
        out = jtext_done(&t);
        out.flags = s.flags & JV_MARKUP;
        return out;
    }
    out = s.kind == J_LIST ? jv_list(r, 0) : jv_tuple(r, 0);
    if (s.l->n == 0) return out;
    for (; times > 0 && jv_step(r, s.l->n); times--)
        for (size_t i = 0; i < s.l->n; i++) jlist_push(r, out.l, s.l->v[i]);
    return out;
}

static bool is_sequence(struct jval v)
{
    return v.kind == J_STR || v.kind == J_LIST || v.kind == J_TUPLE;
}

/* Numbers are added, sequences of one type concatenated. */
struct jval op_add(struct render *r, struct jval a, struct jval b)
{
    int64_t i;

    if (a.kind == J_STR && b.kind == J_STR) return add_str(r, a, b);
    if (jv_is_int(a) && jv_is_int(b))
        return __builtin_add_overflow(jv_as_int(a), jv_as_int(b), &i) ? fail_overflow(r)
                                                                      : jv_int(i);
    if (jv_is_num(a) && jv_is_num(b)) return jv_float(jv_as_float(a) + jv_as_float(b));
    if (jv_is_undef(a)) return jv_fail_undef(r, a);
    if (jv_is_undef(b)) return jv_fail_undef(r, b);
    if (a.kind == b.kind && (a.kind == J_LIST || a.kind == J_TUPLE)) return add_lists(r, a, b);
    if (a.kind == J_STR)
        return jv_fail(r, "can only concatenate str (not \"%s\") to str", jv_type(b));
    if (a.kind == J_LIST)
        return jv_fail(r, "can only concatenate list (not \"%s\") to list", jv_type(b));
    return fail_operands(r, "+", a, b);
}

/* ---- numbers ---- */

/* Numbers are multiplied; a sequence times an integer is repeated. */
static struct jval op_mul(struct render *r, struct jval a, struct jval b)
{
    int64_t i;

    if (jv_is_int(a) && jv_is_int(b))
        return __builtin_mul_overflow(jv_as_int(a), jv_as_int(b), &i) ? fail_overflow(r)
                                                                      : jv_int(i);
    if (jv_is_num(a) && jv_is_num(b)) return jv_float(jv_as_float(a) * jv_as_float(b));
    if (is_sequence(a) && jv_is_int(b)) return repeat_sequence(r, a, jv_as_int(b));
    if (is_sequence(b) && jv_is_int(a)) return repeat_sequence(r, b, jv_as_int(a));
    return fail_operands(r, "*", a, b);
}

/* Python rounds the quotient towards negative infinity; the remainder has the sign of b. */
static struct jval divide_ints(struct render *r, int64_t a, int64_t b, bool mod)
{
    int64_t q, m;

    if (b == 0)
        return jv_fail(r, mod ? "integer modulo by zero" : "integer division or modulo by zero");
    if (b == -1) return mod ? jv_int(0) : a == INT64_MIN ? fail_overflow(r) : jv_int(-a);
    /* C truncates; one step corrects to floor. */
    q = a / b, m = a % b;
    if (m != 0 && (m < 0) != (b < 0)) q--, m += b;
    return jv_int(mod ? m : q);
}

/* The algorithm of CPython (float_divmod): the remainder has the sign of b, also a zero. */
static struct jval divide_floats(struct render *r, double a, double b, bool mod)
{
    double m;

    if (!(b < 0) && !(b > 0) && !isnan(b))
        return jv_fail(r, mod ? "float modulo" : "float floor division by zero");
    m = fmod(a, b);
    if (m < 0 || m > 0) {
        if ((b < 0) != (m < 0)) m += b;
    } else {
        m = copysign(0, b);
    }
    return jv_float(mod ? m : floor(round((a - m) / b * 2) / 2));
}

/* "/", "//" and "%"; the last is formatting for a str. */
static struct jval op_divide(struct render *r, const char *op, struct jval a, struct jval b)
{
    bool mod = op[0] == '%', floored = op[1] == '/';

    if (mod && a.kind == J_STR) return format_percent(r, a.s, b, a.flags & JV_MARKUP);
    if (!jv_is_num(a) || !jv_is_num(b)) return fail_operands(r, op, a, b);
    if (mod || floored) {
        if (jv_is_int(a) && jv_is_int(b)) return divide_ints(r, jv_as_int(a), jv_as_int(b), mod);
        return divide_floats(r, jv_as_float(a), jv_as_float(b), mod);
    }
    if (!jv_truth(r, b))
        return jv_fail(r, jv_is_int(a) && jv_is_int(b) ? "division by zero"
                                                       : "float division by zero");
    return jv_float(jv_as_float(a) / jv_as_float(b));
}

/* Integers stay integers unless the exponent is negative. The loop ends at the first overflow,
 * after at most 63 steps. */
static struct jval op_pow(struct render *r, struct jval a, struct jval b)
{
    int64_t base, exp, out = 1;
    double f;

    if (!jv_is_num(a) || !jv_is_num(b)) return fail_operands(r, "** or pow()", a, b);
    if (!jv_is_int(a) || !jv_is_int(b) || jv_as_int(b) < 0) {
        if (!jv_truth(r, a) && jv_as_float(b) < 0)
            return jv_fail(r, "0.0 cannot be raised to a negative power");
        f = pow(jv_as_float(a), jv_as_float(b));
        if (isnan(f) && !isnan(jv_as_float(a)) && !isnan(jv_as_float(b)))
            return jv_fail(r, "a negative number cannot be raised to a fractional power");
        if (isinf(f) && !isinf(jv_as_float(a)) && !isinf(jv_as_float(b)))
            return jv_fail(r, "the result of ** is too large for a float");
        return jv_float(f);
    }
    base = jv_as_int(a), exp = jv_as_int(b);
    /* Bases that never overflow would make the loop below long. */
    if (base == 1 || base == 0 || base == -1)
        return jv_int(base == -1 && exp % 2 == 0 ? 1 : exp ? base : 1);
    for (; exp > 0; exp--)
        if (__builtin_mul_overflow(out, base, &out)) return fail_overflow(r);
    return jv_int(out);
}

static struct jval op_sub(struct render *r, struct jval a, struct jval b)
{
    int64_t i;

    if (!jv_is_num(a) || !jv_is_num(b)) return fail_operands(r, "-", a, b);
    if (!jv_is_int(a) || !jv_is_int(b)) return jv_float(jv_as_float(a) - jv_as_float(b));
    return __builtin_sub_overflow(jv_as_int(a), jv_as_int(b), &i) ? fail_overflow(r) : jv_int(i);
}

/* Undefined operands are an error, except on the right of % for a str, where formatting reports
 * it. */
struct jval op_binary(struct render *r, const char *op, struct jval a, struct jval b)
{
    if (op[0] == '+') return op_add(r, a, b);
    if (jv_is_undef(a)) return jv_fail_undef(r, a);
    if (jv_is_undef(b) && !(op[0] == '%' && a.kind == J_STR)) return jv_fail_undef(r, b);
    if (op[0] == '-') return op_sub(r, a, b);
    if (op[0] == '*') return op[1] == '*' ? op_pow(r, a, b) : op_mul(r, a, b);
    return op_divide(r, op, a, b);
}

struct jval op_unary(struct render *r, char op, struct jval a)
{
    if (jv_is_undef(a)) return jv_fail_undef(r, a);
    if (!jv_is_num(a)) return jv_fail(r, "bad operand type for unary %c: '%s'", op, jv_type(a));
    if (a.kind == J_FLOAT) return jv_float(op == '-' ? -a.f : a.f);
    if (op == '-' && jv_as_int(a) == INT64_MIN) return fail_overflow(r);
    return jv_int(op == '-' ? -jv_as_int(a) : jv_as_int(a));
}

/* Comparisons with NaN are false, except "!=". */
bool op_compare(struct render *r, const char *op, struct jval a, struct jval b)
{
    int c;

    if (!strcmp(op, "==")) return jv_equal(r, a, b);
    if (!strcmp(op, "!=")) return !jv_equal(r, a, b);
    if (!strcmp(op, "in")) return jv_contains(r, b, a);
    if (!strcmp(op, "!in")) return !jv_contains(r, b, a);
    if ((a.kind == J_FLOAT && isnan(a.f) && jv_is_num(b)) ||
        (b.kind == J_FLOAT && isnan(b.f) && jv_is_num(a)))
        return false;
    c = jv_compare(r, a, b, op);
    if (op[0] == '<') return op[1] ? c <= 0 : c < 0;
    return op[1] ? c >= 0 : c > 0;
}
