#include "examples/trainer/sharpness.h"

#include <algorithm>

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
                     Device* device, const std::vector<int64_t>& layer_sizes, int64_t part)
    : local_(options.perturbation == "local"),
      max_norm_(max_norm),
      base_(base),
      device_(device),
      wsam_(Create(options, max_norm, *base)),
      first_(device, part) {
  if (!local_) {
    saved_ = Array<float>(device, part);
    return;
  }
  for (const int64_t size : layer_sizes) {
    own_.emplace_back(device, size);
  }
  own_sums_.resize(own_.size());
  moved_ = Array<float>(device, *std::max_element(layer_sizes.begin(), layer_sizes.end()));
  unmoved_ = Array<float>(device, moved_.size());
}

void Sharpness::Sum(Session* session, double* values, int count) {
  const Waiting waiting(&waited_s_);
  session->SumOverReplica(values, count);
}

void Sharpness::AddOwn(int layer, const float* params, const float* grads) {
  if (!local_ || second_) {
    return;
  }
  Array<float>& own = own_[static_cast<size_t>(layer)];
  device_->Add(own.data(), grads, own.size());
  // Computed anew after each micro-batch, because `own` is the sum of all micro-batches so far.
  Check(entrain_wsam_ascent_sum(wsam_.get(), params, own.data(), static_cast<size_t>(own.size()),
                                ENTRAIN_F32, &own_sums_[static_cast<size_t>(layer)]));
}

const float* Sharpness::Move(int layer, const float* params) {
  if (!local_ || !second_) {
    return params;
  }
  const Array<float>& own = own_[static_cast<size_t>(layer)];
  device_->Copy(moved_.data(), params, own.bytes());
  Check(entrain_wsam_ascend(wsam_.get(), moved_.data(), unmoved_.data(), own.data(),
                            static_cast<size_t>(own.size()), ENTRAIN_F32, own_sum_));
  return moved_.data();
}

void Sharpness::Ascend(Session* session, Array<float>* masters, Array<float>* grads) {
  device_->Copy(first_.data(), grads->data(), first_.bytes());
  grads->Clear();
  second_ = true;
  if (local_) {
    own_sum_ = 0.0;
    for (const double sum : own_sums_) {
      own_sum_ += sum;
    }
    return;
  }
  const auto count = static_cast<size_t>(first_.size());
  double sum = 0.0;
  Check(entrain_wsam_ascent_sum(wsam_.get(), masters->data(), first_.data(), count, ENTRAIN_F32,
                                &sum));
  Sum(session, &sum, 1);
  Check(entrain_wsam_ascend(wsam_.get(), masters->data(), saved_.data(), first_.data(), count,
                            ENTRAIN_F32, sum));
}

void Sharpness::Step(int64_t step, double lr, Session* session, Array<float>* masters,
                     const Array<float>& grads) {
  const auto count = static_cast<size_t>(grads.size());
  second_ = false;
  for (Array<float>& own : own_) {
    own.Clear();
  }
  if (!local_) {
    Check(entrain_wsam_return(wsam_.get(), masters->data(), saved_.data(), count, ENTRAIN_F32));
  }
  double sums[2] = {device_->SumOfSquares(first_.data(), grads.size()),
                    device_->SumOfSquares(grads.data(), grads.size())};
  if (max_norm_ > 0.0) {
    Sum(session, sums, 2);
  }
  Check(entrain_wsam_step(wsam_.get(), masters->data(), first_.data(), grads.data(), sums,
                          base_->StatePointers().data(), count, ENTRAIN_F32, step, lr));
}

CoupledSharpness::CoupledSharpness(const WsamOptions& options, const InnerOptimizer& base,
                                   Device* device, WholeModel* model)
    : device_(device),
      model_(model),
      wsam_(Create(options, 0.0, base)),
      first_(device, model->offset(model->layers())) {
  int64_t largest = 0;
  for (int layer = 0; layer < model->layers(); ++layer) {
    largest = std::max(largest, model->size(layer));
  }
  for (Array<float>* const array : {&second_, &moved_, &unmoved_}) {
    *array = Array<float>(device, largest);
  }
}

double CoupledSharpness::Add(Pass* pass, float* sums) {
  const auto g = [this](int layer) { return first_.data() + model_->offset(layer); };
  const auto count = [this](int layer) { return static_cast<size_t>(model_->size(layer)); };
  first_.Clear();
  model_->Forward(pass);
  double sum = 0.0;
  model_->Backward(pass, g, nullptr, [&](int layer, const float* params) {
    double part = 0.0;
    Check(entrain_wsam_ascent_sum(wsam_.get(), params, g(layer), count(layer), ENTRAIN_F32, &part));
    sum += part;
  });
  const double loss = pass->loss();
  const WholeModel::Moved move = [&](int layer, const float* params) {
    device_->Copy(moved_.data(), params, model_->size(layer) * int64_t{sizeof(float)});
    Check(entrain_wsam_ascend(wsam_.get(), moved_.data(), unmoved_.data(), g(layer), count(layer),
                              ENTRAIN_F32, sum));
    return moved_.data();
  };
  model_->Forward(pass, move);
  const auto zeros = [&](int layer) {
    device_->Clear(second_.data(), model_->size(layer) * int64_t{sizeof(float)});
    return second_.data();
  };
  model_->Backward(pass, zeros, move, [&](int layer, const float*) {
    Check(entrain_wsam_combine(wsam_.get(), g(layer), second_.data(), second_.data(), count(layer),
                               ENTRAIN_F32));
    device_->Add(sums + model_->offset(layer), second_.data(), model_->size(layer));
  });
  return loss;
}

}  // namespace trainer
