// The MTP layer on a CPU device of its own, for devices that compute in host memory.
#pragma once
#include "backend/draft_store.h"
#include "engine/plan/memory_plan.h"
#include "model/model.h"

namespace riffle {

// head: draft_model of the model. options: draft_options.
std::unique_ptr<DraftStore> make_host_drafts(const Model& head, const ResolvedOptions& options,
                                             ThreadPool* threads);

}  // namespace riffle
