"use strict";
// Computations only; nothing here touches the page. The definitions are those of dualfocal.metrics, and the browser
// test compares every number with them.
const Calibration = (() => {
  const ONE = 2 ** 32; // confidences are rounded to multiples of 2^-32, as in metrics/bins.py
  const CHANCE = 1.645; // standard errors of a 90 % range, as in plots/reliability.py

  // Decode the arrays of a base64 block as `spec` describes them.
  function decode(base64, spec) {
    const text = atob(base64);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
    let offset = 0;
    const take = (type, length) => {
      const array = new type(bytes.buffer, offset, length);
      offset += array.byteLength;
      return array;
    };
    const { count } = spec,
      data = { ...spec };
    if (spec.exact) {
      data.unitsAsGiven = take(Float64Array, count);
      data.nllAsGiven = take(Float64Array, count);
    }
    if (spec.weighted) data.weights = take(Float64Array, count);
    if (spec.kind === "log_sums") {
      data.logSums = take(Float32Array, count * spec.temperatures.length);
      data.ofTarget = take(Float32Array, count);
    } else data.values = take(Float32Array, count * spec.numClasses);
    data.target = take(Uint32Array, count);
    data.predicted = take(Uint32Array, count);
    return data;
  }

  // The requested temperature; for log sums, the nearest one that is embedded.
  function nearest(data, temperature) {
    if (data.kind !== "log_sums") return temperature;
    const distance = (t) => Math.abs(Math.log(t / temperature));
    return data.temperatures.reduce((best, t) => (distance(t) < distance(best) ? t : best));
  }

  // Confidence in units, correctness, weight and NLL at a temperature, for samples predicted as a class (null: all samples).
  function score(data, temperature, ofClass) {
    const rows = [];
    for (let i = 0; i < data.count; i++) if (ofClass === null || data.predicted[i] === ofClass) rows.push(i);
    const n = rows.length;
    const units = new Float64Array(n),
      correct = new Uint8Array(n),
      nll = new Float64Array(n),
      weights = new Float64Array(n).fill(1);
    if (data.weighted) {
      // With mean 1, so that sums of weights read like numbers of samples.
      const mean = rows.reduce((sum, i) => sum + data.weights[i], 0) / n;
      rows.forEach((i, k) => (weights[k] = data.weights[i] / mean));
    }
    const asGiven = temperature === 1;
    const pick = { log_sums: fromLogSums, logits: fromLogits, probs: asGiven ? fromProbs : fromLogits }[data.kind];
    let right = 0;
    rows.forEach((i, k) => {
      if (asGiven && data.exact) {
        units[k] = data.unitsAsGiven[i];
        nll[k] = data.nllAsGiven[i];
      } else {
        const [confidence, loss] = pick(data, i, temperature);
        units[k] = Math.round(confidence * ONE);
        nll[k] = loss;
      }
      const hit = data.predicted[i] === data.target[i];
      correct[k] = data.positive ? data.target[i] === 1 : hit;
      right += hit * weights[k];
    });
    return { units, correct, nll, weights, right };
  }

  function fromLogSums(data, i, temperature) {
    const logSum = data.logSums[i * data.temperatures.length + data.temperatures.indexOf(temperature)];
    return [Math.exp(-logSum), logSum - data.ofTarget[i] / temperature];
  }

  function fromLogits(data, i, temperature) {
    const { values, numClasses } = data,
      start = i * numClasses;
    const logit = (c) => (data.kind === "probs" ? Math.log(values[start + c] || zero(data, c)) : values[start + c]);
    const peak = logit(data.predicted[i]);
    let total = 0;
    for (let c = 0; c < numClasses; c++) total += Math.exp((logit(c) - peak) / temperature);
    const own = data.positive ? Math.exp((logit(1) - peak) / temperature) : 1;
    return [own / total, Math.log(total) - (logit(data.target[i]) - peak) / temperature];
  }

  // Replacement of a probability of 0, as in the calibrators: the true value was rounded away.
  const zero = (data, c) => data.zeros[data.zeros.length > 1 ? c : 0];

  // Probabilities are used as given, even if they do not quite sum to 1.
  function fromProbs(data, i) {
    const start = i * data.numClasses;
    const confidence = data.values[start + (data.positive ? 1 : data.predicted[i])];
    return [Math.min(confidence, 1), -Math.log(data.values[start + data.target[i]])];
  }

  // Round to a number of significant bits.
  function rounded(x, bits) {
    if (x === 0 || bits >= 53) return x;
    const unit = 2 ** (Math.floor(Math.log2(x)) + 1 - bits);
    return Math.round(x / unit) * unit;
  }

  // Bins (lo, hi] of equal width; 0 is in the first. Edges are rounded like the confidences, so that 0.2 in float32
  // lies on the edge 1/5.
  function equalWidth({ units, correct, weights }, numBins, bits, effect) {
    const edges = Array.from({ length: numBins + 1 }, (_, k) => rounded(k / numBins, bits));
    const bounds = edges.map((edge) => Math.round(edge * ONE));
    const bins = edges.slice(1).map((high, b) => empty(edges[b], high));
    for (let i = 0; i < units.length; i++) {
      let b = Math.min(Math.max(Math.ceil((units[i] * numBins) / ONE) - 1, 0), numBins - 1);
      while (b > 0 && units[i] <= bounds[b]) b--;
      while (b < numBins - 1 && units[i] > bounds[b + 1]) b++;
      add(bins[b], units[i], correct[i], weights[i]);
    }
    return bins.map((bin) => finish(bin, effect));
  }

  // Bins (lo, hi] between interpolated quantiles. Equal confidences share a bin, so bins can be empty.
  function equalMass({ units, correct }, numBins, effect) {
    const n = units.length;
    const order = Uint32Array.from(units.keys()).sort((a, b) => units[a] - units[b]);
    const sorted = Float64Array.from(order, (i) => units[i]);
    const edges = places(n, numBins).map((place) => {
      const below = Math.floor(place),
        low = sorted[below],
        high = sorted[Math.min(below + 1, n - 1)];
      return low + (place - below) * (high - low);
    });
    const bins = [];
    let i = 0;
    for (let b = 0; b < numBins; b++) {
      const bin = empty(edges[b] / ONE, edges[b + 1] / ONE);
      for (const end = Math.floor(edges[b + 1]); i < n && sorted[i] <= end; i++)
        add(bin, sorted[i], correct[order[i]], 1);
      bins.push(finish(bin, effect));
    }
    return bins;
  }

  // Bins of equal weight: a bin ends with the last confidence that begins before its quantile of the sum of weights.
  function equalWeight({ units, correct, weights }, numBins, effect) {
    const order = Uint32Array.from(units.keys()).sort((a, b) => units[a] - units[b]);
    const groups = []; // equal confidences: the sum of weights before them, and where they end
    let sum = 0;
    order.forEach((i, k) => {
      if (k === 0 || units[i] !== units[order[k - 1]]) groups.push({ begin: sum, units: units[i] });
      groups.at(-1).end = k + 1;
      sum += weights[i];
    });
    const last = Array.from({ length: numBins + 1 }, (_, b) => {
      const most = sum * (b / numBins + 1e-9); // rounding of sums of weights
      return groups.findLast(({ begin }) => begin <= most);
    });
    let k = 0;
    return last.slice(1).map((group, b) => {
      const bin = empty(last[b].units / ONE, group.units / ONE);
      for (; k < group.end; k++) add(bin, units[order[k]], correct[order[k]], weights[order[k]]);
      return finish(bin, effect);
    });
  }

  // torch.linspace(0, n, numBins + 1), which counts from both ends; whole numbers must agree exactly.
  function places(n, numBins) {
    const step = n / numBins,
      half = Math.floor((numBins + 1) / 2);
    return Array.from({ length: numBins + 1 }, (_, k) =>
      Math.min(k < half ? step * k : n - step * (numBins - k), n - 1),
    );
  }

  const empty = (low, high) => ({ low, high, count: 0, correct: 0, units: 0, variance: 0, spread: 0 });

  function add(bin, units, correct, weight) {
    const p = units / ONE;
    bin.count += weight;
    bin.correct += weight * correct;
    bin.units += weight * units; // without weights, exact below 2^53: up to two million samples
    bin.variance += weight * weight * p * (1 - p);
    bin.spread += weight * p * (1 - p);
  }

  // `effect`: the design effect, by which clusters increase the variance.
  function finish({ low, high, count, correct, units, variance, spread }, effect) {
    const confidence = units / ONE / count,
      accuracy = correct / count;
    return {
      low,
      high,
      count,
      correct,
      confidence,
      accuracy,
      variance: effect * variance,
      spread,
      gap: units / ONE - correct,
      // Continuity correction of half a sample, since the number of right predictions is an integer.
      chance: (CHANCE * Math.sqrt(effect * variance) + 0.5) / count,
    };
  }

  // Noise floor: the mean ECE of a calibrated model. For each bin E|sum of (p - outcome)| by the normal approximation,
  // and at most its bound 2 sum w p (1 - p).
  function expected(bins, n) {
    return bins.reduce((sum, { variance: v, spread }) => sum + Math.min(Math.sqrt((2 * v) / Math.PI), 2 * spread), 0) / n;
  }

  // All numbers at one setting: {temperature, numBins, scheme: "width" or "mass", ofClass: index or null}.
  function evaluate(data, { temperature, numBins, scheme, ofClass }) {
    const used = nearest(data, temperature);
    const scored = score(data, used, ofClass);
    const n = scored.units.length,
      bits = used === 1 ? data.edgeBits : 53;
    const result = { temperature: used, count: n, positive: data.positive, bins: [], histogram: [] };
    if (n === 0) return { ...result, ece: NaN, chance: NaN, nll: NaN, error: NaN, confidence: NaN, accuracy: NaN };
    const effect = data.designEffect,
      equal = data.weighted ? equalWeight : equalMass;
    result.histogram = equalWidth(scored, numBins, bits, effect);
    result.bins = scheme === "mass" ? equal(scored, numBins, effect) : result.histogram;
    const sum = (array) => array.reduce((total, x, i) => total + scored.weights[i] * x, 0);
    return {
      ...result,
      ece: result.bins.reduce((total, bin) => total + Math.abs(bin.gap), 0) / n,
      chance: expected(result.bins, n),
      nll: sum(scored.nll) / n,
      error: 1 - scored.right / n,
      confidence: sum(scored.units) / ONE / n,
      accuracy: sum(scored.correct) / n,
    };
  }

  return { decode, evaluate, nearest, places };
})();
