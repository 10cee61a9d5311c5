// A device that is not the CPU, for machines that have no GPU: its memory is the CPU's and the CPU computes,
// but a tensor there and one here do not mix, as on a GPU. It has no streams, graphs or generators.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>

namespace {

using at::Tensor;
constexpr auto kind = c10::DeviceType::PrivateUse1;
const c10::Device device{kind, 0};

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* start = bytes ? std::malloc(bytes) : nullptr;
    return {start, start, &std::free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} memory;
REGISTER_ALLOCATOR(kind, &memory);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::DeviceType type() const override { return kind; }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Device getDevice() const override { return device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  Hooks() { at::RegisterPrivateUse1HooksInterface(this); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
} hooks;

// The same memory as a CPU tensor, and a copy of a CPU tensor there.
Tensor here(const Tensor& t) {
  if (!t.defined() || t.is_cpu()) return t;
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), at::TensorOptions().dtype(t.dtype()));
}
std::optional<Tensor> here(const std::optional<Tensor>& t) {
  return t && t->defined() ? std::optional<Tensor>(here(*t)) : std::nullopt;
}
Tensor there(const Tensor& t) { return t.defined() ? t.to(device) : t; }

// A GPU takes single numbers and places to look up from the CPU, and nothing else.
void there_or_fail(const char* operation, const Tensor& t) {
  TORCH_CHECK(!t.defined() || !t.is_cpu() || t.dim() == 0, "devices are mixed in ", operation, ": ", t.sizes(),
              " is on the CPU");
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  const bool looks_up = name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index", 0) == 0;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (looks_up) break;
    if (value.isTensor()) there_or_fail(name.c_str(), value.toTensor());
    if (value.isTensorList()) {
      for (const Tensor& t : value.toTensorVector()) there_or_fail(name.c_str(), t);
    }
  }
  at::native::cpu_fallback(op, stack);
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &memory, keys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &memory, keys, c10::dtype_or_default(dtype));
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const auto bytes = (c10::multiply_integers(sizes) + self.storage_offset()) * self.itemsize();
  auto storage = self.storage();
  if (storage.nbytes() < static_cast<size_t>(bytes)) {
    auto larger = memory.allocate(bytes);
    if (storage.nbytes()) std::memcpy(larger.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr(std::move(larger));
    storage.set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset.guard_int(__FILE__, __LINE__));
  if (stride.size() == size.size()) {
    impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  } else {
    impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  }
  return self;
}

Tensor copy_from(const Tensor& source, const Tensor& to, bool) {
  if (to.numel()) here(to).copy_(here(source));
  return to;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& to) {
  if (to.sizes() != source.sizes()) to.resize_(source.sizes());
  return copy_from(source, to, false);
}

Tensor convolution(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b, c10::SymIntArrayRef stride,
                   c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  for (const Tensor& t : {x, w, b.value_or(Tensor())}) there_or_fail("a convolution", t);
  return there(at::convolution_symint(here(x), here(w), here(b), stride, padding, dilation, transposed,
                                      output_padding, std::move(groups)));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& g, const Tensor& x, const Tensor& w, c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups,
    std::array<bool, 3> wanted) {
  for (const Tensor& t : {g, x, w}) there_or_fail("a convolution's gradient", t);
  const std::vector<c10::SymInt> bias{transposed ? w.sym_size(1) * groups : w.sym_size(0)};
  auto [of_x, of_w, of_b] = at::convolution_backward_symint(
      here(g), here(x), here(w), c10::SymIntArrayRef(bias), stride, padding, dilation, transposed, output_padding,
      std::move(groups), wanted);
  return {there(of_x), there(of_w), there(of_b)};
}

// Its schema does not say that it writes to the running statistics, so the fallback would forget them.
std::tuple<Tensor, Tensor, Tensor> batch_norm(
    const Tensor& x, const std::optional<Tensor>& w, const std::optional<Tensor>& b,
    const std::optional<Tensor>& mean, const std::optional<Tensor>& variance, bool training, double momentum,
    double eps) {
  for (const auto& t : {std::optional<Tensor>(x), w, b, mean, variance}) {
    there_or_fail("batch norm", t.value_or(Tensor()));
  }
  auto [out, of_mean, of_std] =
      at::native_batch_norm(here(x), here(w), here(b), here(mean), here(variance), training, momentum, eps);
  return {there(out), there(of_mean), there(of_std)};
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  m.impl("native_batch_norm", TORCH_FN(batch_norm));
}
