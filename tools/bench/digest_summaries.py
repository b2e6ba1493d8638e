"""Summaries of the keys of blocks, for digest_study.py: digests, codes and centres, each with the
bytes that it takes for a token and the estimate that it makes of a block's mass."""
import functools
import math

import torch


class Layer:
    """The keys k [KV head, token, d] of one layer after RoPE, in blocks. `ref` is a layer of
    another prompt that means, axes and codebooks are fitted to; `fits` keeps what was fitted."""

    def __init__(self, k, block, theta, ref=None, queries=None):
        self.k, self.block, self.d = k, block, k.shape[-1]
        self.blocks = k.shape[1] // block
        self.frequency = theta ** (-torch.arange(self.d // 2) * 2 / self.d)
        self.position = torch.arange(k.shape[1]).float()
        self.ref, self.queries, self.fits = ref or self, queries, {}

    def rotate(self, x, position):
        """RoPE of x [..., d] by position, which broadcasts against x without its last axis."""
        angle = position[..., None] * self.frequency
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., :self.d // 2], x[..., self.d // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def split(self, x, size=None):
        return x.unflatten(1, (-1, size or self.block))

    def fitted(self, key, fit):
        if key not in self.ref.fits:
            self.ref.fits[key] = fit(self.ref)
        return self.ref.fits[key]

    # The three kinds of estimate. Each gives log of a block's mass, [step, KV head, head, block].
    def tokens(self, khat):
        return lambda q: scores(q, khat).unflatten(-1, (-1, self.block)).logsumexp(-1)

    def points(self, c, count):
        """c: [KV head, block, point, d], each standing for `count` tokens."""
        log = torch.as_tensor(count).float().log()
        log = log[:, None] if log.dim() else log
        return lambda q: (scores(q, c.flatten(1, 2)).unflatten(-1, c.shape[1:3])
                          + log).logsumexp(-1)

    def box(self, c, r, parts):
        """c, r: [KV head, part of a block, d]. A block has the score of its best part."""
        n = math.log(self.block)
        return lambda q: (scores(q, c) + scores(q.abs(), r) + n).unflatten(
            -1, (-1, parts)).amax(-1)


def scores(q, k):
    return torch.einsum("sghd,gnd->sghn", q, k) / math.sqrt(k.shape[-1])


def half(x):
    return x.half().float()


def coded(x, bits, dim=-1):
    """Asymmetric codes: the least value and the step are kept as f16."""
    low = half(x.amin(dim, keepdim=True))
    step = half(((x.amax(dim, keepdim=True) - low) / (2 ** bits - 1)).clamp(min=1e-6))
    return low + step * ((x - low) / step).round().clamp(0, 2 ** bits - 1)


@functools.lru_cache(None)
def levels(bits):
    """The 2^bits levels of least error for a normal distribution of unit variance."""
    x = torch.special.ndtri((torch.arange(20001) + 0.5) / 20001)
    c = torch.special.ndtri((torch.arange(2 ** bits) + 0.5) / 2 ** bits)
    for _ in range(100):
        own = torch.bucketize(x, (c[1:] + c[:-1]) / 2)
        c = torch.zeros_like(c).index_add_(0, own, x) / torch.bincount(own, minlength=2 ** bits)
    return c


def normal(x, bits):
    """Codes on the levels of a normal distribution, and one f16 a token that makes the estimate
    of x.x right: least squares would shrink the scores that matter, the large ones."""
    c, u = levels(bits), x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-9)
    c = c[torch.bucketize(u, (c[1:] + c[:-1]) / 2)]
    scale = x.square().sum(-1, keepdim=True) / (c * x).sum(-1, keepdim=True).clamp(min=1e-9)
    return c * half(scale)


def hadamard(d):
    """Spreads a key's outliers over all dimensions; q.k stays the same if q is turned in the same way."""
    h = torch.ones(1, 1)
    while h.shape[0] < d:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    signs = torch.randint(0, 2, (d,), generator=torch.Generator().manual_seed(5)) * 2 - 1
    return h * signs / math.sqrt(d)


def mean_key(y, before=False):
    """The mean of all keys. Its score is the same for all tokens, so no token needs to store it.
    before: the mean before RoPE, turned to each token's position."""
    if not before:
        return y.fitted("mean", lambda z: z.k.mean(1, keepdim=True))
    mean = y.fitted("before", lambda z: z.rotate(z.k, -z.position).mean(1, keepdim=True))
    return y.rotate(mean.expand_as(y.k), y.position)


def centred(y, code, before):
    mean, h = mean_key(y, before), hadamard(y.d)
    return y.tokens(mean + code((y.k - mean) @ h) @ h.T)


def clusters(x, m, rounds=6):
    """k-means inside each block, x [KV head, block, token, d], begun with the farthest keys."""
    flat = x.flatten(0, 1)
    c = flat.mean(1, keepdim=True)
    for i in range(m):
        far = torch.cdist(flat, c).amin(-1).argmax(-1)
        new = flat[torch.arange(len(flat)), far][:, None]
        c = new if i == 0 else torch.cat([c, new], 1)
    for _ in range(rounds):
        own = torch.nn.functional.one_hot(torch.cdist(flat, c).argmin(-1), m).float()
        n = own.sum(1)
        total = own.transpose(1, 2) @ flat
        c = torch.where(n[..., None] > 0, total / n[..., None].clamp(min=1), c)
    return c.unflatten(0, x.shape[:2]), n.unflatten(0, x.shape[:2])


def codebook(y, parts, centres, rounds=6):
    x = y.k - y.k.mean(1, keepdim=True)
    x = x[:, torch.linspace(0, x.shape[1] - 1, min(2048, x.shape[1])).long()]
    some = x.unflatten(-1, (parts, -1)).transpose(1, 2).flatten(0, 1)
    c = some[:, torch.linspace(0, some.shape[1] - 1, centres).long()]
    for _ in range(rounds):
        own = torch.cdist(some, c).argmin(-1)
        total = torch.zeros_like(c).scatter_add_(1, own[..., None].expand_as(some), some)
        n = torch.zeros(c.shape[:2]).scatter_add_(1, own, torch.ones(own.shape))
        c = torch.where(n[..., None] > 0, total / n[..., None].clamp(min=1), c)
    return c


def product(y, parts, centres):
    """Product quantisation: each of `parts` pieces of a key becomes the number of a centre."""
    c = y.fitted(("product", parts, centres), lambda z: codebook(z, parts, centres))
    p = (y.k - mean_key(y)).unflatten(-1, (parts, -1)).transpose(1, 2).flatten(0, 1)
    own = torch.cat([torch.cdist(piece, c).argmin(-1) for piece in p.split(1024, 1)], 1)
    out = c.gather(1, own[..., None].expand(-1, -1, c.shape[-1]))
    return y.tokens(mean_key(y) + out.unflatten(0, (len(y.k), parts)).transpose(1, 2).flatten(2))


def root(m, power):
    val, vec = torch.linalg.eigh(m)
    return (vec * val.clamp(min=1e-9)[:, None] ** power) @ vec.transpose(1, 2)


def balance(y):
    """The stretch that spends equal bits best: keys and queries then vary alike in all directions
    (the geometric mean of the queries' covariance and the inverse of the keys')."""
    c = []
    for x in (y.k - y.k.mean(1, keepdim=True), y.queries):
        v = x.transpose(1, 2) @ x / x.shape[1]
        c.append(v + 0.03 * torch.eye(y.d) * v.diagonal(dim1=1, dim2=2).mean(-1)[:, None, None])
    a, b = root(c[0], 0.5), root(c[0], -0.5)
    return root(b @ root(a @ c[1] @ a, 0.5) @ b, 0.5)


def balanced(y, bits, before=False):
    mean, to = mean_key(y, before), y.fitted("balance", balance)
    x = (y.k - mean) @ to @ hadamard(y.d)
    return y.tokens(mean + normal(x, bits) @ hadamard(y.d).T @ torch.linalg.inv(to))


def cuboid(y, size=None, inner="mean", bits=None):
    x = y.split(y.k, size)
    low, high = x.amin(2), x.amax(2)
    c = (low + high) / 2
    r = (high - low) / 2 if inner == "max" else (x - c[:, :, None]).abs().mean(2)
    if bits:
        c, r = coded(c, bits), coded(r, bits)
    return y.box(c, r, y.block // (size or y.block))


def before_rope(y, radius):
    """A digest of keys before RoPE; the query is turned back by the position of a block's middle,
    so that the digest holds what the keys say and not how far each has turned."""
    x = y.split(y.rotate(y.k, -y.position))
    middle = y.split(y.position[None])[0].mean(1)
    c = (x.amin(2) + x.amax(2)) / 2 if radius else x.mean(2)
    r = (x - c[:, :, None]).abs().mean(2) * radius

    def estimate(q):
        turned = y.rotate(q[..., None, :], -middle)
        s = torch.einsum("sghbd,gbd->sghb", turned, c)
        s = s + torch.einsum("sghbd,gbd->sghb", turned.abs(), r)
        return s / math.sqrt(y.d) + math.log(y.block)
    return estimate


def slow(y, estimate):
    """The estimate without the faster half of RoPE's pairs."""
    keep = (torch.arange(y.d) % (y.d // 2) >= y.d // 4).float()
    return lambda q: estimate(q * keep)


def variance(y):
    """Mean and variance of each dimension: the log of a mean of exp of normal scores is their mean
    and half of their variance."""
    x = y.split(y.k)
    mean, var = half(x.mean(2)), half(x.var(2, unbiased=False))
    return lambda q: (scores(q, mean) + scores(q * q, var) / math.sqrt(y.d) / 2
                      + math.log(y.block))


def means(y, size, bits=None):
    c = y.split(y.k, size).mean(2)
    c = coded(c, bits) if bits else half(c)
    return y.points(c.unflatten(1, (y.blocks, -1)), size)


def picked(y, m, bits=None):
    c, n = clusters(y.split(y.k), m)
    return y.points(coded(c, bits) if bits else half(c), n)


def apart(y):
    """Keeps the key farthest from the box's centre, and the mean of the others."""
    x = y.split(y.k)
    centre = (x.amin(2) + x.amax(2)) / 2
    far = (x - centre[:, :, None]).norm(dim=-1).argmax(-1)
    one = x.gather(2, far[..., None, None].expand(-1, -1, 1, y.d))
    rest = (x.sum(2, keepdim=True) - one) / (y.block - 1)
    n = torch.tensor([1.0, y.block - 1]).expand(*x.shape[:2], 2)
    return y.points(half(torch.cat([one, rest], 2)), n)


def channels(y, group):
    """2-bit codes with a least value and a step for each channel of a group of tokens."""
    return y.tokens(coded(y.split(y.k, group), 2, 2).flatten(1, 2))


def turned(bits, before=False):
    return lambda y: centred(y, lambda x: normal(x, bits), before)


# name: bytes a token and KV head for blocks of B and dimension d, and how the estimate is made.
SUMMARIES = {
    "exact": ("2*d", lambda y: y.tokens(y.k)),
    "INT4 keys": ("d/2 + 4", lambda y: y.tokens(coded(y.k, 4))),
    "mean": ("2*d/B", lambda y: means(y, y.block)),
    "Quest": ("4*d/B", lambda y: cuboid(y, inner="max")),
    "cuboid-mean": ("4*d/B", cuboid),
    "mean, slow half": ("d/B", lambda y: slow(y, means(y, y.block))),
    "cuboid-mean, slow half": ("2*d/B", lambda y: slow(y, cuboid(y))),
    "exact, slow half": ("d", lambda y: slow(y, y.tokens(y.k))),
    "mean before RoPE": ("2*d/B", lambda y: before_rope(y, 0)),
    "cuboid-mean before RoPE": ("4*d/B", lambda y: before_rope(y, 1)),
    "mean and variance": ("4*d/B", variance),
    "means of 8, f16": ("2*d/8", lambda y: means(y, 8)),
    "means of 4, f16": ("2*d/4", lambda y: means(y, 4)),
    "means of 2, f16": ("2*d/2", lambda y: means(y, 2)),
    "Quest of 4, f16": ("4*d/4", lambda y: cuboid(y, 4, "max")),
    "cuboid-mean of 4, f16": ("4*d/4", lambda y: cuboid(y, 4)),
    "means of 4, 8 bit": ("(d + 4)/4", lambda y: means(y, 4, 8)),
    "means of 2, 4 bit": ("(d/2 + 4)/2", lambda y: means(y, 2, 4)),
    "cuboid-mean of 8, 8 bit": ("2*(d + 4)/8", lambda y: cuboid(y, 8, bits=8)),
    "2 k-means, f16": ("4*d/B", lambda y: picked(y, 2)),
    "4 k-means, 8 bit": ("4*(d + 5)/B", lambda y: picked(y, 4, 8)),
    "8 k-means, 4 bit": ("8*(d/2 + 5)/B", lambda y: picked(y, 8, 4)),
    "farthest key and mean": ("4*d/B", apart),
    "2 bit a token": ("d/4 + 4", lambda y: y.tokens(coded(y.k, 2))),
    "2 bit a channel of 64": ("d/4 + 4*d/64", lambda y: channels(y, 64)),
    "2 bit normal": ("d/4 + 2", turned(2)),
    "2 bit normal, pre-RoPE mean": ("d/4 + 2", turned(2, True)),
    "2 bit balanced": ("d/4 + 2", lambda y: balanced(y, 2)),
    "2 bit balanced, pre-RoPE mean": ("d/4 + 2", lambda y: balanced(y, 2, True)),
    "1 bit balanced": ("d/8 + 2", lambda y: balanced(y, 1)),
    "3 bit normal": ("3*d/8 + 2", turned(3)),
    "PQ 16 x 8 bit": ("16", lambda y: product(y, 16, 256)),
    "PQ 8 x 8 bit": ("8", lambda y: product(y, 8, 256)),
}
