#!/bin/bash
# One file of `riffle batch` spread over the tasks of a Slurm job array.
#
#   sbatch --array=1-8 tools/batch_array.sh 8 questions.jsonl answers.jsonl -m model.gguf --max-seqs 16
#   cat answers.jsonl.part-* > answers.jsonl        # when all are done
#
# usage: batch_array.sh PARTS INPUT OUTPUT [flags of riffle batch]. Task I answers part I of PARTS into OUTPUT.part-000000I; the parts one
# behind the other hold the answers of a single run. A task that was preempted, killed or out of time goes on where it was when the same
# line is submitted again (also with --array=3 for the third alone, or by itself with sbatch --requeue). A task whose part has a
# line that failed ends with 6, which Slurm shows as FAILED; its part is complete all the same. RIFFLE: the program, if not on the PATH.
#SBATCH --job-name=riffle
#SBATCH --requeue
#SBATCH --open-mode=append
set -eu
parts=${1:?usage: batch_array.sh PARTS INPUT OUTPUT [flags]} input=${2:?INPUT is missing} output=${3:?OUTPUT is missing}
shift 3
# exec: Slurm's SIGTERM reaches riffle, which writes what is finished.
exec "${RIFFLE:-riffle}" batch -i "$input" -o "$output.part-$(printf %07d "$SLURM_ARRAY_TASK_ID")" \
  --shard "$SLURM_ARRAY_TASK_ID/$parts" "$@"
