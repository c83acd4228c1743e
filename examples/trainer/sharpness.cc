#include "examples/trainer/sharpness.h"

#include <algorithm>

#include "examples/trainer/kernels.h"
#include "examples/trainer/stopwatch.h"

namespace trainer {

namespace {

OptimHandle Create(const WsamOptions& options, double max_norm, const InnerOptimizer& base) {
  entrain_optim_config_t config;
  entrain_optim_config_init(&config);
  config.kind = ENTRAIN_OPTIM_WSAM;
  config.base = base.handle();
  config.rho = options.rho;
  config.gamma = options.gamma;
  config.sam_eps = options.eps;
  config.max_norm = max_norm;
  config.adaptive = options.adaptive ? 1 : 0;
  config.decouple = options.form == "decoupled" ? 1 : 0;
  entrain_optim_t* wsam = nullptr;
  Check(entrain_optim_create(&config, &wsam));
  return OptimHandle(wsam);
}

}  // namespace

Sharpness::Sharpness(const WsamOptions& options, double max_norm, InnerOptimizer* base,
                     const std::vector<int64_t>& layer_sizes, int64_t part)
    : local_(options.perturbation == "local"),
      max_norm_(max_norm),
      base_(base),
      wsam_(Create(options, max_norm, *base)),
      first_(static_cast<size_t>(part)) {
  if (!local_) {
    saved_.resize(first_.size());
    return;
  }
  for (const int64_t size : layer_sizes) {
    own_.emplace_back(static_cast<size_t>(size));
  }
  own_sums_.resize(own_.size());
  moved_.resize(static_cast<size_t>(*std::max_element(layer_sizes.begin(), layer_sizes.end())));
  unmoved_.resize(moved_.size());
}

void Sharpness::Sum(Session* session, double* values, int count) {
  const Waiting waiting(&waited_s_);
  session->SumOverReplica(values, count);
}

void Sharpness::AddOwn(int layer, const float* params, const float* grads) {
  if (!local_ || second_) {
    return;
  }
  std::vector<float>& own = own_[static_cast<size_t>(layer)];
  trainer::Add(own.data(), grads, static_cast<int64_t>(own.size()));
  // Computed anew after each micro-batch, because `own` is the sum of all micro-batches so far.
  Check(entrain_wsam_ascent_sum(wsam_.get(), params, own.data(), own.size(), ENTRAIN_F32,
                                &own_sums_[static_cast<size_t>(layer)]));
}

const float* Sharpness::Move(int layer, const float* params) {
  if (!local_ || !second_) {
    return params;
  }
  const std::vector<float>& own = own_[static_cast<size_t>(layer)];
  std::copy_n(params, own.size(), moved_.data());
  Check(entrain_wsam_ascend(wsam_.get(), moved_.data(), unmoved_.data(), own.data(), own.size(),
                            ENTRAIN_F32, own_sum_));
  return moved_.data();
}

void Sharpness::Ascend(Session* session, std::vector<float>* masters, std::vector<float>* grads) {
  first_ = *grads;
  std::fill(grads->begin(), grads->end(), 0.0f);
  second_ = true;
  if (local_) {
    own_sum_ = 0.0;
    for (const double sum : own_sums_) {
      own_sum_ += sum;
    }
    return;
  }
  const size_t count = first_.size();
  double sum = 0.0;
  Check(entrain_wsam_ascent_sum(wsam_.get(), masters->data(), first_.data(), count, ENTRAIN_F32,
                                &sum));
  Sum(session, &sum, 1);
  Check(entrain_wsam_ascend(wsam_.get(), masters->data(), saved_.data(), first_.data(), count,
                            ENTRAIN_F32, sum));
}

void Sharpness::Step(int64_t step, double lr, Session* session, std::vector<float>* masters,
                     const std::vector<float>& grads) {
  const size_t count = grads.size();
  second_ = false;
  for (std::vector<float>& own : own_) {
    std::fill(own.begin(), own.end(), 0.0f);
  }
  if (!local_) {
    Check(entrain_wsam_return(wsam_.get(), masters->data(), saved_.data(), count, ENTRAIN_F32));
  }
  const auto length = static_cast<int64_t>(count);
  double sums[2] = {SumOfSquares(first_.data(), length), SumOfSquares(grads.data(), length)};
  if (max_norm_ > 0.0) {
    Sum(session, sums, 2);
  }
  Check(entrain_wsam_step(wsam_.get(), masters->data(), first_.data(), grads.data(), sums,
                          base_->StatePointers().data(), count, ENTRAIN_F32, step, lr));
}

CoupledSharpness::CoupledSharpness(const WsamOptions& options, const InnerOptimizer& base,
                                   WholeModel* model)
    : model_(model),
      wsam_(Create(options, 0.0, base)),
      first_(static_cast<size_t>(model->offset(model->layers()))) {
  int64_t largest = 0;
  for (int layer = 0; layer < model->layers(); ++layer) {
    largest = std::max(largest, model->size(layer));
  }
  for (std::vector<float>* const array : {&second_, &moved_, &unmoved_}) {
    array->resize(static_cast<size_t>(largest));
  }
}

double CoupledSharpness::Add(Pass* pass, float* sums) {
  const auto g = [this](int layer) { return first_.data() + model_->offset(layer); };
  const auto count = [this](int layer) { return static_cast<size_t>(model_->size(layer)); };
  std::fill(first_.begin(), first_.end(), 0.0f);
  model_->Forward(pass);
  double sum = 0.0;
  model_->Backward(pass, g, nullptr, [&](int layer, const float* params) {
    double part = 0.0;
    Check(entrain_wsam_ascent_sum(wsam_.get(), params, g(layer), count(layer), ENTRAIN_F32, &part));
    sum += part;
  });
  const double loss = pass->loss();
  const WholeModel::Moved move = [&](int layer, const float* params) {
    std::copy_n(params, model_->size(layer), moved_.data());
    Check(entrain_wsam_ascend(wsam_.get(), moved_.data(), unmoved_.data(), g(layer), count(layer),
                              ENTRAIN_F32, sum));
    return moved_.data();
  };
  model_->Forward(pass, move);
  const auto zeros = [&](int layer) {
    std::fill_n(second_.data(), model_->size(layer), 0.0f);
    return second_.data();
  };
  model_->Backward(pass, zeros, move, [&](int layer, const float*) {
    Check(entrain_wsam_combine(wsam_.get(), g(layer), second_.data(), second_.data(), count(layer),
                               ENTRAIN_F32));
    trainer::Add(sums + model_->offset(layer), second_.data(), model_->size(layer));
  });
  return loss;
}

}  // namespace trainer
