#!/usr/bin/env bash
# The figures of docs/performance.md for one GPU, section by section.
#
# usage: figures.sh PROGRAM FOLDER [SECTION...]
#
# PROGRAM is `clearway`, FOLDER keeps the model files of random weights, which are made where they are missing (40 GB in
# all). Without sections all are run, those that check results first. Tables go to standard output, each behind the command that
# printed it. A command that fails is named at the end, and the exit status is 1 then.
#
# | section | what |
# |---|---|
# | counters | 200,000 steps with counters against barriers, and waits that fail |
# | decode | one stream: greedy, drawn, with barriers, with 3,968 tokens in the cache |
# | prompts | 512 to 16,384 tokens, and 512 behind 3,968 |
# | families | Qwen 3, Gemma 3 and a mixture of experts |
# | batch | 1 to 64 sequences |
# | drafts | texts with drafts and without, and the 8B shape with drafts that fare the same; needs MODEL, a real model file |
# | divided | 8B in f16 with 8 GB of the card, beside the CPU alone |
# | micro | the parts, three times |
# | server | load of the server's own generator, or of VLLM_RS |
# | newcomer | a prompt of 8,000 tokens beside 16 texts |
# | matrix | all shapes and formats |
#
# Environment: DEVICE (vulkan), MODEL, VLLM_RS, SMALL=1 (tiny numbers: shows that the commands work).
set -u

[ $# -ge 2 ] || { sed -n '4,25s/^# \{0,1\}//p' "$0" >&2; exit 2; }
program=$1 folder=$2
shift 2
device=${DEVICE:-vulkan}
here=$(dirname "${BASH_SOURCE[0]}")
mkdir -p "$folder"
failed=()

run() {
  printf '\n$ %s\n' "$*"
  local start=$SECONDS
  "$@" || failed+=("$*")
  printf '(%d s)\n' $((SECONDS - start))
}

# The file of a shape and a format, made once.
file() {
  local path=$folder/$1-$2.gguf
  [ -e "$path" ] || "$program" synth "$1" "$2" "$path" --vocab >&2 || return 1
  printf '%s\n' "$path"
}

bench() { run "$program" bench --device "$device" "$@"; }

if [ -n "${SMALL:-}" ]; then
  few="-r 1" tokens=4 deep=32 prompts=8,16 long=32,64 steps=20 at_once=1,2 in_flight=1,2 divided=smollm2-135m cap=200M
  main=("smollm2-135m q4_1") families=("smollm2-135m q8_0") wide=("smollm2-135m q8_0") large=smollm2-135m large_format=q8_0
  drafted=8 arrives=64 others=2
  matrix="--shapes smollm2-135m --formats q4_0,q8_0 -d 32 -p 8 -n 4"
else
  few="-r 5" tokens=128 deep=3968 prompts=512,2048 long=4096,16384 steps=200000 at_once=1,2,4,8,16,32,64 in_flight=1,8,32,64
  main=("smollm2-135m q4_1" "llama-1b f16" "llama-1b q8_0" "llama-8b q4_k_m") divided=llama-8b cap=8G
  families=("qwen3-0.6b q8_0" "gemma3-4b q4_k_m" "qwen3-30b-a3b q4_k_m")
  wide=("llama-8b q4_k_m" "llama-1b q8_0") large=llama-8b large_format=q4_k_m
  drafted=256 arrives=8000 others=16
  matrix="-r 3"
fi

counters() {
  local model
  model=$(file smollm2-135m q4_1) || return 1
  bench -m "$model" --check-counters "$steps"
  bench -m "$model" --check-counters $((steps / 20)) --counter-fault never-fills
  bench -m "$model" --check-counters $((steps / 20)) --counter-fault one-look
}

decode() {
  local each model
  for each in "${main[@]}"; do
    model=$(file $each) || return 1
    bench -m "$model" -p 0 -n $tokens $few
    bench -m "$model" -p 0 -n $tokens $few --temp 0.8
    bench -m "$model" -p 0 -n $tokens $few --no-counters
  done
  for each in "${wide[@]}"; do
    model=$(file $each) || return 1
    bench -m "$model" -p 0 -n $tokens -d $deep $few
    bench -m "$model" -p 0 -n $tokens -d $deep $few --cache-type q8_0
  done
}

prompts() {
  local each model
  for each in "${main[@]}"; do
    model=$(file $each) || return 1
    bench -m "$model" -n 0 -p $prompts $few
  done
  bench -m "$model" -n 0 -p $long $few
  bench -m "$model" -n 0 -p ${prompts%%,*} -d $deep $few
  run "$program" inspect -m "$model" --device "$device" --tokens ${prompts##*,} -c ${prompts##*,} --measure --statistics --text
}

families() {
  local each model
  for each in "${families[@]}"; do
    model=$(file $each) || return 1
    bench -m "$model" -p $prompts -n $tokens $few
  done
}

batch() {
  local each model
  for each in "${wide[@]}"; do
    model=$(file $each) || return 1
    bench -m "$model" -p $tokens -n $tokens --parallel $at_once
  done
}

drafts() {
  [ -n "${MODEL:-}" ] || { echo "drafts: MODEL names no model file" >&2; failed+=("drafts without MODEL"); return; }
  bench -m "$MODEL" --spec ngram -n $drafted $few --write-trace "$folder/trace.json"
  bench -m "$MODEL" --spec ngram -n $drafted $few --deterministic
  local model
  model=$(file "$large" "$large_format") || return 1
  bench -m "$model" --trace "$folder/trace.json" $few
}

divided() {
  local model
  model=$(file "$divided" f16) || return 1
  bench -m "$model" -p 0 -n 16 -r 1 --device-memory "$cap"
  run "$program" bench --device cpu -m "$model" -p 0 -n 16 -r 1
  run "$program" show "$model" --device "$device" --device-memory "$cap"
  run "$program" eval -m "$model" --device "$device" --device-memory "$cap" --tokens "1 2 3 4 5" --top 5
  run "$program" eval -m "$model" --device cpu --float-activations --tokens "1 2 3 4 5" --top 5
}

micro() {
  for _ in 1 2 3; do bench --micro; done
}

server() {
  local each model
  for each in "${wide[@]}"; do
    model=$(file $each) || return 1
    run python3 "$here/../serve/load.py" "$program" -m "$model" --device "$device" --in-flight $in_flight \
      --tokens $tokens ${VLLM_RS:+--vllm-rs "$VLLM_RS"}
  done
}

newcomer() {
  local model
  model=$(file "$large" "$large_format") || return 1
  run python3 "$here/../serve/load.py" "$program" -m "$model" --device "$device" --in-flight 0 --turns 0 --newcomer $arrives --others $others
}

matrix() { bench --matrix --folder "$folder" $matrix; }

sections=(counters decode prompts families batch drafts divided micro server newcomer matrix)
[ $# -gt 0 ] || set -- "${sections[@]}"
for section in "$@"; do
  [[ " ${sections[*]} " == *" $section "* ]] || { echo "no section is called $section: ${sections[*]}" >&2; exit 2; }
done
run "$program" devices
for section in "$@"; do
  printf '\n## %s\n' "$section"
  "$section" || failed+=("$section: a model file could not be made")
done
if [ ${#failed[@]} -gt 0 ]; then
  printf '\n%d failed:\n' ${#failed[@]}
  printf '  %s\n' "${failed[@]}"
  exit 1
fi
