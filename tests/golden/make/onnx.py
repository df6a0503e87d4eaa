#!/usr/bin/env python3
"""Builds small BERT-like encoders the way torch.onnx writes them, with their expected outputs (numpy, float64)."""
import json, os, sys
import numpy as np, onnx
from onnx import helper as h, TensorProto as T, numpy_helper as nh
from math import erf

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a the cat dog tern bird sea is are on in and mat good bad very not film this was . , ! ? ##s ##ing fly swim b c d e f g h i j k l m n o p q r s t u v w x y z".split()
V, D, H, F, L, P = 64, 16, 2, 32, 2, 40
rng = np.random.default_rng(7)

def weights(head=0):
    w = {}
    def r(*s, k=0.3): return (rng.standard_normal(s) * k).astype(np.float32)
    w['word'] = r(V, D, k=.5); w['pos'] = r(P, D, k=.2); w['type'] = r(2, D, k=.2)
    w['eg'] = 1 + r(D, k=.1); w['eb'] = r(D, k=.1)
    for l in range(L):
        for n in 'qkvo': w[f'{n}{l}'] = r(D, D); w[f'{n}b{l}'] = r(D, k=.1)
        w[f'ag{l}'] = 1 + r(D, k=.1); w[f'ab{l}'] = r(D, k=.1)
        w[f'up{l}'] = r(D, F); w[f'upb{l}'] = r(F, k=.1); w[f'dn{l}'] = r(F, D); w[f'dnb{l}'] = r(D, k=.1)
        w[f'fg{l}'] = 1 + r(D, k=.1); w[f'fb{l}'] = r(D, k=.1)
    if head:
        w['pw'] = r(D, D); w['pb'] = r(D, k=.1); w['cw'] = r(head, D, k=1.0); w['cb'] = r(head, k=.1)
    return w

def ln(x, g, b): m = x.mean(-1, keepdims=True); v = ((x - m) ** 2).mean(-1, keepdims=True); return (x - m) / np.sqrt(v + 1e-12) * g + b
def gelu(x): return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))

def forward(w, ids, types=None, head=0):
    w = {k: v.astype(np.float64) for k, v in w.items()}
    n = len(ids); types = types if types is not None else [0] * n
    x = ln(w['word'][ids] + w['pos'][:n] + w['type'][types], w['eg'], w['eb'])
    for l in range(L):
        q, k, v = (x @ w[f'{c}{l}'] + w[f'{c}b{l}'] for c in 'qkv')
        sp = lambda t: t.reshape(n, H, D // H).transpose(1, 0, 2)
        s = sp(q) @ sp(k).transpose(0, 2, 1) / np.sqrt(D // H)
        s = np.exp(s - s.max(-1, keepdims=True)); s /= s.sum(-1, keepdims=True)
        o = (s @ sp(v)).transpose(1, 0, 2).reshape(n, D)
        x = ln(x + o @ w[f'o{l}'] + w[f'ob{l}'], w[f'ag{l}'], w[f'ab{l}'])
        f = gelu(x @ w[f'up{l}'] + w[f'upb{l}'])
        x = ln(x + f @ w[f'dn{l}'] + w[f'dnb{l}'], w[f'fg{l}'], w[f'fb{l}'])
    if not head: return x
    return np.tanh(x[0] @ w['pw'] + w['pb']) @ w['cw'].T + w['cb']

class G:
    def __init__(s, opset): s.n, s.i, s.c, s.opset = [], [], 0, opset
    def name(s, p): s.c += 1; return f'/{p}_{s.c}'
    def init(s, name, a): s.i.append(nh.from_array(np.asarray(a), name)); return name
    def const(s, a):
        o = s.name('Constant_out'); s.n.append(h.make_node('Constant', [], [o], name=s.name('Constant'), value=nh.from_array(np.asarray(a)))); return o
    def op(s, t, *ins, **kw):
        o = s.name(t + '_out'); s.n.append(h.make_node(t, list(ins), [o], name=s.name(t), **kw)); return o
    def axes(s, t, x, ax):
        if s.opset >= 13: return s.op(t, x, s.const(np.array(ax, np.int64)))
        return s.op(t, x, axes=ax)
    def ln(s, x, g, b):
        if s.opset >= 17: return s.op('LayerNormalization', x, g, b, axis=-1, epsilon=1e-12)
        kw = dict(axes=[-1])
        m = s.op('ReduceMean', x, **kw); d = s.op('Sub', x, m); p = s.op('Pow', d, s.const(np.float32(2)))
        v = s.op('ReduceMean', p, **kw); v = s.op('Add', v, s.const(np.float32(1e-12))); q = s.op('Sqrt', v)
        return s.op('Add', s.op('Mul', s.op('Div', d, q), g), b)

def build(w, opset, head=0, f16=False, out='last_hidden_state', sentence=False, quant=False):
    g = G(opset)
    for k, v in w.items(): g.init(k, v)
    shp = lambda x, i: g.op('Gather', g.op('Shape', x), g.const(np.array(i, np.int64)), axis=0)
    un = lambda x: g.axes('Unsqueeze', x, [0])
    # mask: (1 - m) * min
    m = g.axes('Unsqueeze', g.axes('Unsqueeze', 'attention_mask', [1]), [2])
    m = g.op('Cast', m, to=T.FLOAT)
    m = g.op('Mul', g.op('Sub', g.const(np.float32(1)), m), g.const(np.float32(np.finfo(np.float32).min)))
    b, n = shp('input_ids', 0), shp('input_ids', 1)
    pid = g.init('position_table', np.arange(P, dtype=np.int64)[None])
    pid = g.op('Slice', pid, g.const(np.array([0], np.int64)), un(n), g.const(np.array([1], np.int64)), g.const(np.array([1], np.int64)))
    x = g.op('Add', g.op('Gather', 'word', 'input_ids'), g.op('Gather', 'type', 'token_type_ids'))
    x = g.op('Add', x, g.op('Gather', 'pos', pid))
    x = g.ln(x, 'eg', 'eb')
    def mm(x, wn):
        if not quant: return g.op('MatMul', x, wn)
        a = w[wn]; sc = np.abs(a).max() / 127; q = np.clip(np.rint(a / sc), -127, 127).astype(np.int8)
        g.init(wn + '_q', q); g.init(wn + '_s', np.float32(sc)); g.init(wn + '_z', np.int8(0))
        xo, xs, xz = g.name('q'), g.name('s'), g.name('z')
        g.n.append(h.make_node('DynamicQuantizeLinear', [x], [xo, xs, xz], name=g.name('DQL')))
        r = g.op('Cast', g.op('MatMulInteger', xo, wn + '_q', xz, wn + '_z'), to=T.FLOAT)
        return g.op('Mul', r, g.op('Mul', xs, wn + '_s'))
    for l in range(L):
        def split(c):
            y = g.op('Add', g.const(w[f'{c}b{l}']), mm(x, f'{c}{l}'))
            to = g.op('Concat', un(shp(y, 0)), un(shp(y, 1)), g.const(np.array([H], np.int64)), g.const(np.array([D // H], np.int64)), axis=0)
            return g.op('Reshape', y, to)
        q = g.op('Transpose', split('q'), perm=[0, 2, 1, 3]); k = g.op('Transpose', split('k'), perm=[0, 2, 3, 1]); v = g.op('Transpose', split('v'), perm=[0, 2, 1, 3])
        s = g.op('Div', g.op('MatMul', q, k), g.const(np.float32(np.sqrt(D // H))))
        s = g.op('Softmax', g.op('Add', s, m), axis=-1 if opset >= 13 else 3)
        o = g.op('Transpose', g.op('MatMul', s, v), perm=[0, 2, 1, 3])
        to = g.op('Concat', un(shp(o, 0)), un(shp(o, 1)), g.const(np.array([D], np.int64)), axis=0)
        o = g.op('Reshape', o, to)
        o = g.op('Add', f'ob{l}', mm(o, f'o{l}'))
        x = g.ln(g.op('Add', o, x), f'ag{l}', f'ab{l}')
        u = g.op('Add', f'upb{l}', mm(x, f'up{l}'))
        e = g.op('Add', g.op('Erf', g.op('Div', u, g.const(np.float32(np.sqrt(2))))), g.const(np.float32(1)))
        u = g.op('Mul', g.op('Mul', u, e), g.const(np.float32(.5)))
        x = g.ln(g.op('Add', g.op('Add', f'dnb{l}', mm(u, f'dn{l}')), x), f'fg{l}', f'fb{l}')
    outs = []
    if head:
        c = g.op('Gather', x, g.const(np.array(0, np.int64)), axis=1)
        c = g.op('Tanh', g.op('Gemm', c, g.init('pwT', w['pw'].T.copy()), 'pb', transB=1))
        c = g.op('Gemm', c, 'cw', 'cb', transB=1)
        g.n.append(h.make_node('Identity', [c], ['logits'], name='out'))
        outs = [h.make_tensor_value_info('logits', T.FLOAT, ['batch_size', head])]
    else:
        g.n.append(h.make_node('Identity', [x], [out], name='out'))
        outs = [h.make_tensor_value_info(out, T.FLOAT, ['batch_size', 'sequence_length', D])]
        if sentence:
            mf = g.op('Cast', g.axes('Unsqueeze', 'attention_mask', [-1]), to=T.FLOAT)
            me = g.op('Expand', mf, g.op('Shape', x))
            sm = g.op('ReduceSum', g.op('Mul', x, me), g.const(np.array([1], np.int64)), keepdims=0) if opset >= 13 else None
            ct = g.op('Clip', g.op('ReduceSum', me, g.const(np.array([1], np.int64)), keepdims=0), g.const(np.float32(1e-9)))
            g.n.append(h.make_node('Div', [sm, ct], ['sentence_embedding'], name='pool'))
            outs.append(h.make_tensor_value_info('sentence_embedding', T.FLOAT, ['batch_size', D]))
    ins = [h.make_tensor_value_info(n_, T.INT64, ['batch_size', 'sequence_length']) for n_ in ('input_ids', 'attention_mask', 'token_type_ids')]
    used = {i for n_ in g.n for i in n_.input}
    gr = h.make_graph(g.n, 'main_graph', ins, outs, [i for i in g.i if i.name in used])
    m = h.make_model(gr, opset_imports=[h.make_opsetid('', opset)], producer_name='pytorch')
    m.ir_version = 7
    return m

def tokenizer():
    vocab = {w: i for i, w in enumerate(WORDS)}
    added = [dict(id=i, content=WORDS[i], single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i in range(5)]
    return dict(version='1.0', truncation=None, padding=None, added_tokens=added,
        normalizer=dict(type='BertNormalizer', clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True),
        pre_tokenizer=dict(type='BertPreTokenizer'),
        post_processor=dict(type='TemplateProcessing', single=[dict(SpecialToken=dict(id='[CLS]', type_id=0)), dict(Sequence=dict(id='A', type_id=0)), dict(SpecialToken=dict(id='[SEP]', type_id=0))],
            pair=[dict(SpecialToken=dict(id='[CLS]', type_id=0)), dict(Sequence=dict(id='A', type_id=0)), dict(SpecialToken=dict(id='[SEP]', type_id=0)), dict(Sequence=dict(id='B', type_id=1)), dict(SpecialToken=dict(id='[SEP]', type_id=1))],
            special_tokens={'[CLS]': dict(id='[CLS]', ids=[2], tokens=['[CLS]']), '[SEP]': dict(id='[SEP]', ids=[3], tokens=['[SEP]'])}),
        decoder=dict(type='WordPiece', prefix='##', cleanup=True),
        model=dict(type='WordPiece', unk_token='[UNK]', continuing_subword_prefix='##', max_input_chars_per_word=100, vocab=vocab))

def put(d, name, x):
    p = os.path.join(d, name); os.makedirs(os.path.dirname(p), exist_ok=True)
    if isinstance(x, onnx.ModelProto): onnx.save(x, p)
    else: json.dump(x, open(p, 'w'), indent=None if name.startswith('token') else 1)

def folder(d, arch, model, where='onnx/model.onnx', extra={}, st=None):
    put(d, where, model)
    put(d, 'config.json', dict(architectures=[arch], model_type='bert', hidden_size=D, num_hidden_layers=L, num_attention_heads=H, intermediate_size=F, max_position_embeddings=P, type_vocab_size=2, vocab_size=V, pad_token_id=0, **extra))
    put(d, 'tokenizer.json', tokenizer()); put(d, 'tokenizer_config.json', dict(tokenizer_class='BertTokenizer', model_max_length=40, cls_token='[CLS]', sep_token='[SEP]', pad_token='[PAD]', unk_token='[UNK]', mask_token='[MASK]'))
    if st: put(d, 'modules.json', [dict(idx=0, name='0', path='', type='sentence_transformers.models.Transformer'), dict(idx=1, name='1', path='1_Pooling', type='sentence_transformers.models.Pooling'), dict(idx=2, name='2', path='2_Normalize', type='sentence_transformers.models.Normalize')]); put(d, '1_Pooling/config.json', st)

if __name__ == '__main__':
    out = sys.argv[1]
    texts = [[2, 5, 7, 17, 12, 3], [2, 6, 8, 3], [2, 9, 10, 31, 15, 6, 11, 25, 3]]
    we, wc = weights(), weights(head=3)
    mean = dict(word_embedding_dimension=D, pooling_mode_cls_token=False, pooling_mode_mean_tokens=True, pooling_mode_max_tokens=False)
    folder(f'{out}/embed', 'BertModel', build(we, 14), st=mean)
    folder(f'{out}/classify', 'BertForSequenceClassification', build(wc, 17, head=3), where='model.onnx', extra=dict(id2label={'0': 'bad', '1': 'fair', '2': 'good'}, problem_type='single_label_classification'))
    folder(f'{out}/opset11', 'BertModel', build(we, 11), st=mean)
    folder(f'{out}/quant', 'BertModel', build(we, 13, quant=True), st=mean)
    folder(f'{out}/sentence', 'BertModel', build(we, 17, sentence=True))
    hidden = [forward(we, t) for t in texts]
    gold = dict(texts=texts, logits=[forward(wc, t, head=3).tolist() for t in texts],
                pair=dict(ids=texts[0] + texts[1][1:], second=len(texts[0])))
    gold['pair']['logits'] = forward(wc, gold['pair']['ids'], [0] * 6 + [1] * 3, head=3).tolist()
    for i, t in enumerate(texts):
        e = hidden[i].mean(0); gold.setdefault('embeddings', []).append((e / np.linalg.norm(e)).tolist())
    json.dump(gold, open(f'{out}/expected.json', 'w'))
