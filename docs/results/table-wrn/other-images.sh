# After the runs of commands.sh: the errors of other-images.json, in the order of its rows.
for run in cifar100-wrn-10-2-none-0060637c \
  cifar100-wrn-10-2-cutmix-389df66e \
  cifar100-wrn-10-2-saliency-grafting-7a74faf5; do
  for seed in 0 1 2 3 4; do
    saligraft evaluate runs/laptop/runs/$run/seed-$seed --set data.held_out=true --set data.test_subset=450
  done
done
