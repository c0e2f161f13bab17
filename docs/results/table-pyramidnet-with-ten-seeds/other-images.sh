# After the runs of commands.sh: the errors of other-images.json, in the order of its rows.
for run in cifar100-pyramidnet-20-24-none-5893856a \
  cifar100-pyramidnet-20-24-none-67e23a6d \
  cifar100-pyramidnet-20-24-mixup-6c178762 \
  cifar100-pyramidnet-20-24-cutmix-3165e57d \
  cifar100-pyramidnet-20-24-saliencymix-ca65ee22 \
  cifar100-pyramidnet-20-24-puzzlemix-5871ed17 \
  cifar100-pyramidnet-20-24-saliency-grafting-d464200d; do
  for seed in 0 1 2 3 4 5 6 7 8 9; do
    saligraft evaluate runs/fp32/runs/$run/seed-$seed --set data.held_out=true --set data.test_subset=450
  done
done
