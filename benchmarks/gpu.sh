#!/usr/bin/env bash
# Runs the GPU tests and benchmarks on a machine with one GPU, the most important first.
#
#     bash benchmarks/gpu.sh PART FOLDER [--check]
#
# PART is one of the following, each of which is stopped within ten minutes, or all:
#   losses     loss_gpu.py, the GPU tests
#   trainings  step_times_gpu.py, jobs_gpu.py
#   rest       train_step_gpu.py, memcheck of the kernels, train_agreement_gpu.py if $DUALFOCAL_DATA is set
# Result tables and a log of each program go to FOLDER. A program that fails, or exceeds its limit of seconds, does not
# stop the next; the last lines say how each one ended. --check tries the scripts with tiny sizes, also without a GPU.
# $PYTHON is the interpreter (default: python3).
set -uo pipefail
part=${1:?losses, trainings, rest or all} out=${2:?folder of the results} check=${3:-}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python3}
export PYTHONPATH="$PWD/src:$PWD/lab/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
command -v nvidia-smi > /dev/null || export TRITON_INTERPRET=1 # for --check without a GPU
summary=()
failed=0

# limited SECONDS NAME COMMAND...
limited() {
    local limit=$1 name=$2 start=$SECONDS status
    shift 2
    echo "== $name"
    timeout --signal=INT --kill-after=10 "$limit" "$@" 2>&1 | tee "$out/$name.log"
    status=${PIPESTATUS[0]}
    [ "$status" = 0 ] || failed=1
    summary+=("$name: exit status $status after $((SECONDS - start)) s$([ "$status" = 124 ] && echo ", its limit")")
}
# benchmark SECONDS NAME ARGUMENTS...: benchmarks/NAME.py, with results in NAME.csv
benchmark() {
    local limit=$1 name=$2
    shift 2
    limited "$limit" "$name" "$python" "benchmarks/$name.py" --csv "$out/$name.csv" "$@" $check
}

losses() {
    benchmark 330 loss_gpu
    limited 240 gpu_tests "$python" -m pytest -p no:cacheprovider --durations=10 tests/losses/test_cuda.py tests/metrics/test_gpu.py \
        lab/tests/train/test_step_gpu.py lab/tests/train/test_train_gpu.py lab/tests/models/test_model_gpu.py tests/calibrators/test_calibrator_gpu.py \
        lab/tests/data/test_transforms_gpu.py tests/kernels lab/tests/kernels
}
trainings() {
    benchmark 290 step_times_gpu --out "$out/step_times.json"
    benchmark 290 jobs_gpu
}
rest() {
    benchmark 240 train_step_gpu
    if command -v compute-sanitizer > /dev/null; then
        limited 90 memcheck compute-sanitizer --error-exitcode 1 "$python" benchmarks/loss_gpu.py --check --parts linear
    fi
    if [ -n "${DUALFOCAL_DATA:-}$check" ]; then benchmark 100 train_agreement_gpu; fi
}

# A missing package is noticed now, not after minutes.
"$python" -c 'import dualfocal_lab.study, torch; print("torch", torch.__version__, "CUDA", torch.cuda.is_available())' || exit 1
case $part in
    losses | trainings | rest) "$part" ;;
    all) losses; trainings; rest ;;
    *) echo "no part $part; parts are losses, trainings, rest and all"; exit 2 ;;
esac
printf '%s\n' "${summary[@]}" | tee "$out/summary-$part.txt"
exit $failed
