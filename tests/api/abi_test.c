/* The layout of every struct of the ABI on LP64, field by field. If a line fails here, existing
 * callers break. A new field goes to the end, and a line for it is added here. */
#include <entrain/entrain.h>
#include <entrain/optim.h>
#include <stddef.h>
#include <stdio.h>

static int failures;

static void check(const char* what, size_t is, size_t should_be) {
  if (is != should_be) {
    printf("%s is %lu, the ABI says %lu\n", what, (unsigned long)is, (unsigned long)should_be);
    failures++;
  }
}

#define SIZE(type, bytes) check("sizeof(" #type ")", sizeof(type), bytes)
#define AT(type, field, offset) \
  check("offsetof(" #type ", " #field ")", offsetof(type, field), offset)

static void check_peer_id(void) {
  SIZE(entrain_peer_id_t, 16);
  AT(entrain_peer_id_t, bytes, 0);
}

static void check_error(void) {
  SIZE(entrain_error_t, 768);
  AT(entrain_error_t, size, 0);
  AT(entrain_error_t, code, 8);
  AT(entrain_error_t, scope, 12);
  AT(entrain_error_t, phase, 16);
  AT(entrain_error_t, guilty_rank, 20);
  AT(entrain_error_t, peer_id, 24);
  AT(entrain_error_t, generation, 40);
  AT(entrain_error_t, sequence, 48);
  AT(entrain_error_t, tag, 56);
  AT(entrain_error_t, elapsed_ns, 64);
  AT(entrain_error_t, deadline_ns, 72);
  AT(entrain_error_t, bytes_done, 80);
  AT(entrain_error_t, sys_errno, 88);
  AT(entrain_error_t, guilty_world_rank, 92);
  AT(entrain_error_t, operation, 96);
  AT(entrain_error_t, peer_address, 128);
  AT(entrain_error_t, text, 256);
}

static void check_member(void) {
  SIZE(entrain_member_t, 296);
  AT(entrain_member_t, size, 0);
  AT(entrain_member_t, peer_id, 8);
  AT(entrain_member_t, rank, 24);
  AT(entrain_member_t, parent_rank, 28);
  AT(entrain_member_t, state, 32);
  AT(entrain_member_t, code, 36);
  AT(entrain_member_t, text, 40);
}

static void check_shrink_config(void) {
  SIZE(entrain_shrink_config_t, 40);
  AT(entrain_shrink_config_t, size, 0);
  AT(entrain_shrink_config_t, timeout_ns, 8);
  AT(entrain_shrink_config_t, exclude, 16);
  AT(entrain_shrink_config_t, exclude_count, 24);
  AT(entrain_shrink_config_t, partition, 28);
  AT(entrain_shrink_config_t, name, 32);
}

static void check_runtime_config(void) {
  SIZE(entrain_runtime_config_t, 96);
  AT(entrain_runtime_config_t, size, 0);
  AT(entrain_runtime_config_t, transports, 8);
  AT(entrain_runtime_config_t, interface_filter, 16);
  AT(entrain_runtime_config_t, ports, 24);
  AT(entrain_runtime_config_t, key_file, 32);
  AT(entrain_runtime_config_t, tls_cert, 40);
  AT(entrain_runtime_config_t, tls_key, 48);
  AT(entrain_runtime_config_t, tls_ca, 56);
  AT(entrain_runtime_config_t, host_id, 64);
  AT(entrain_runtime_config_t, progress, 72);
  AT(entrain_runtime_config_t, reserved, 76);
  AT(entrain_runtime_config_t, log, 80);
  AT(entrain_runtime_config_t, log_user, 88);
}

static void check_work_info(void) {
  SIZE(entrain_work_info_t, 144);
  AT(entrain_work_info_t, size, 0);
  AT(entrain_work_info_t, sequence, 8);
  AT(entrain_work_info_t, tag, 16);
  AT(entrain_work_info_t, elapsed_ns, 24);
  AT(entrain_work_info_t, done, 32);
  AT(entrain_work_info_t, reserved, 36);
  AT(entrain_work_info_t, operation, 40);
  AT(entrain_work_info_t, comm, 72);
  AT(entrain_work_info_t, source, 136);
}

static void check_store_functions(void) {
  SIZE(entrain_store_functions_t, 64);
  AT(entrain_store_functions_t, size, 0);
  AT(entrain_store_functions_t, user, 8);
  AT(entrain_store_functions_t, set, 16);
  AT(entrain_store_functions_t, get, 24);
  AT(entrain_store_functions_t, add, 32);
  AT(entrain_store_functions_t, remove, 40);
  AT(entrain_store_functions_t, release, 48);
  AT(entrain_store_functions_t, host, 56);
}

static void check_grow_config(void) {
  SIZE(entrain_grow_config_t, 40);
  AT(entrain_grow_config_t, size, 0);
  AT(entrain_grow_config_t, store, 8);
  AT(entrain_grow_config_t, min_newcomers, 16);
  AT(entrain_grow_config_t, max_newcomers, 20);
  AT(entrain_grow_config_t, wait_ns, 24);
  AT(entrain_grow_config_t, timeout_ns, 32);
}

static void check_join_config(void) {
  SIZE(entrain_join_config_t, 72);
  AT(entrain_join_config_t, size, 0);
  AT(entrain_join_config_t, runtime, 8);
  AT(entrain_join_config_t, store, 16);
  AT(entrain_join_config_t, name, 24);
  AT(entrain_join_config_t, algorithms, 32);
  AT(entrain_join_config_t, timeout_ns, 40);
  AT(entrain_join_config_t, tuning, 48);
  AT(entrain_join_config_t, wait_ns, 56);
  AT(entrain_join_config_t, determinism, 64);
  AT(entrain_join_config_t, reserved, 68);
}

static void check_comm_config(void) {
  SIZE(entrain_comm_config_t, 80);
  AT(entrain_comm_config_t, size, 0);
  AT(entrain_comm_config_t, runtime, 8);
  AT(entrain_comm_config_t, store, 16);
  AT(entrain_comm_config_t, name, 24);
  AT(entrain_comm_config_t, rank, 32);
  AT(entrain_comm_config_t, world_size, 36);
  AT(entrain_comm_config_t, algorithms, 40);
  AT(entrain_comm_config_t, timeout_ns, 48);
  AT(entrain_comm_config_t, tuning, 56);
  AT(entrain_comm_config_t, determinism, 64);
  AT(entrain_comm_config_t, reserved, 68);
  AT(entrain_comm_config_t, silence_ns, 72);
}

static void check_comm_stats(void) {
  SIZE(entrain_comm_stats_t, 48);
  AT(entrain_comm_stats_t, size, 0);
  AT(entrain_comm_stats_t, calls, 8);
  AT(entrain_comm_stats_t, bytes_sent, 16);
  AT(entrain_comm_stats_t, bytes_received, 24);
  AT(entrain_comm_stats_t, generation, 32);
  AT(entrain_comm_stats_t, sequence, 40);
}

static void check_call_options(void) {
  SIZE(entrain_call_options_t, 64);
  AT(entrain_call_options_t, size, 0);
  AT(entrain_call_options_t, tag, 8);
  AT(entrain_call_options_t, timeout_ns, 16);
  AT(entrain_call_options_t, wait, 24);
  AT(entrain_call_options_t, memory, 28);
  AT(entrain_call_options_t, stream, 32);
  AT(entrain_call_options_t, reduction, 40);
  AT(entrain_call_options_t, batch, 48);
  AT(entrain_call_options_t, determinism, 56);
  AT(entrain_call_options_t, reserved, 60);
}

static void check_gta_config(void) {
  SIZE(entrain_gta_config_t, 64);
  AT(entrain_gta_config_t, size, 0);
  AT(entrain_gta_config_t, weights, 8);
  AT(entrain_gta_config_t, ranks, 16);
  AT(entrain_gta_config_t, consensus, 20);
  AT(entrain_gta_config_t, normalize, 24);
  AT(entrain_gta_config_t, sparsification, 28);
  AT(entrain_gta_config_t, density, 32);
  AT(entrain_gta_config_t, seed, 40);
  AT(entrain_gta_config_t, wire_format, 48);
  AT(entrain_gta_config_t, wire_block, 52);
  AT(entrain_gta_config_t, wire_rounding, 56);
  AT(entrain_gta_config_t, error_feedback, 60);
}

static void check_optim_config(void) {
  SIZE(entrain_optim_config_t, 152);
  AT(entrain_optim_config_t, size, 0);
  AT(entrain_optim_config_t, kind, 8);
  AT(entrain_optim_config_t, nesterov, 12);
  AT(entrain_optim_config_t, momentum, 16);
  AT(entrain_optim_config_t, beta1, 24);
  AT(entrain_optim_config_t, beta2, 32);
  AT(entrain_optim_config_t, eps, 40);
  AT(entrain_optim_config_t, weight_decay, 48);
  AT(entrain_optim_config_t, delta, 56);
  AT(entrain_optim_config_t, clip, 64);
  AT(entrain_optim_config_t, decay, 72);
  AT(entrain_optim_config_t, amsgrad, 76);
  AT(entrain_optim_config_t, win, 80);
  AT(entrain_optim_config_t, memory, 84);
  AT(entrain_optim_config_t, stream, 88);
  AT(entrain_optim_config_t, timeout_ns, 96);
  AT(entrain_optim_config_t, base, 104);
  AT(entrain_optim_config_t, rho, 112);
  AT(entrain_optim_config_t, gamma, 120);
  AT(entrain_optim_config_t, sam_eps, 128);
  AT(entrain_optim_config_t, max_norm, 136);
  AT(entrain_optim_config_t, adaptive, 144);
  AT(entrain_optim_config_t, decouple, 148);
}

static void check_optim_info(void) {
  SIZE(entrain_optim_info_t, 24);
  AT(entrain_optim_info_t, size, 0);
  AT(entrain_optim_info_t, elements, 8);
  AT(entrain_optim_info_t, adaptive, 16);
}

static void check_mesh_config(void) {
  SIZE(entrain_mesh_config_t, 40);
  AT(entrain_mesh_config_t, size, 0);
  AT(entrain_mesh_config_t, tensor, 8);
  AT(entrain_mesh_config_t, pipeline, 12);
  AT(entrain_mesh_config_t, context, 16);
  AT(entrain_mesh_config_t, shard, 20);
  AT(entrain_mesh_config_t, sync, 24);
  AT(entrain_mesh_config_t, order, 32);
}

static void check_shard_config(void) {
  SIZE(entrain_shard_config_t, 80);
  AT(entrain_shard_config_t, size, 0);
  AT(entrain_shard_config_t, layers, 8);
  AT(entrain_shard_config_t, prefetch, 12);
  AT(entrain_shard_config_t, layer_counts, 16);
  AT(entrain_shard_config_t, param_dtype, 24);
  AT(entrain_shard_config_t, grad_dtype, 28);
  AT(entrain_shard_config_t, timeout_ns, 32);
  AT(entrain_shard_config_t, layer_frozen, 40);
  AT(entrain_shard_config_t, layer_replicated, 48);
  AT(entrain_shard_config_t, layer_segments, 56);
  AT(entrain_shard_config_t, segment_counts, 64);
  AT(entrain_shard_config_t, segment_rows, 72);
}

static void check_shard_layer(void) {
  SIZE(entrain_shard_layer_t, 56);
  AT(entrain_shard_layer_t, size, 0);
  AT(entrain_shard_layer_t, full_count, 8);
  AT(entrain_shard_layer_t, padded_count, 16);
  AT(entrain_shard_layer_t, shard_count, 24);
  AT(entrain_shard_layer_t, first, 32);
  AT(entrain_shard_layer_t, valid_count, 40);
  AT(entrain_shard_layer_t, slab_offset, 48);
}

static void check_shard_stats(void) {
  SIZE(entrain_shard_stats_t, 40);
  AT(entrain_shard_stats_t, size, 0);
  AT(entrain_shard_stats_t, gather_wait_ns, 8);
  AT(entrain_shard_stats_t, reduce_wait_ns, 16);
  AT(entrain_shard_stats_t, bytes_sent_shard, 24);
  AT(entrain_shard_stats_t, bytes_sent_sync, 32);
}

static void check_edit_config(void) {
  SIZE(entrain_edit_config_t, 480);
  AT(entrain_edit_config_t, size, 0);
  AT(entrain_edit_config_t, shard, 8);
  AT(entrain_edit_config_t, local_sgd_sync_interval, 16);
  AT(entrain_edit_config_t, local_sgd_warmup_steps, 24);
  AT(entrain_edit_config_t, gradient_accumulation_steps, 32);
  AT(entrain_edit_config_t, reducer, 36);
  AT(entrain_edit_config_t, pseudo_gradnorm_reduce, 40);
  AT(entrain_edit_config_t, normalize, 44);
  AT(entrain_edit_config_t, weight_softmax_temperature, 48);
  AT(entrain_edit_config_t, clip_pseudo_grad, 56);
  AT(entrain_edit_config_t, outer_optimizer, 64);
  AT(entrain_edit_config_t, outer_nesterov, 68);
  AT(entrain_edit_config_t, outer_lr, 72);
  AT(entrain_edit_config_t, outer_momentum, 80);
  AT(entrain_edit_config_t, outer_weight_decay, 88);
  AT(entrain_edit_config_t, prefetch, 96);
  AT(entrain_edit_config_t, use_async, 100);
  AT(entrain_edit_config_t, timeout_ns, 104);
  AT(entrain_edit_config_t, local_sgd_sync_time, 112);
  AT(entrain_edit_config_t, min_total_global_steps, 120);
  AT(entrain_edit_config_t, use_step_weight, 128);
  AT(entrain_edit_config_t, skip_anomaly, 132);
  AT(entrain_edit_config_t, step_weight_ratio, 136);
  AT(entrain_edit_config_t, ewma_alpha, 144);
  AT(entrain_edit_config_t, ewma_warmup_steps, 152);
  AT(entrain_edit_config_t, ewma_threshold, 160);
  AT(entrain_edit_config_t, outer_beta1, 168);
  AT(entrain_edit_config_t, outer_beta2, 176);
  AT(entrain_edit_config_t, outer_eps, 184);
  AT(entrain_edit_config_t, outer_step, 192);
  AT(entrain_edit_config_t, outer_user, 200);
  AT(entrain_edit_config_t, is_debug, 208);
  AT(entrain_edit_config_t, compat, 212);
  AT(entrain_edit_config_t, overlap_steps, 216);
  AT(entrain_edit_config_t, consensus_method, 220);
  AT(entrain_edit_config_t, sparsification_method, 224);
  AT(entrain_edit_config_t, density, 232);
  AT(entrain_edit_config_t, seed, 240);
  AT(entrain_edit_config_t, wire_format, 248);
  AT(entrain_edit_config_t, wire_block, 252);
  AT(entrain_edit_config_t, wire_rounding, 256);
  AT(entrain_edit_config_t, error_feedback, 260);
  AT(entrain_edit_config_t, overlap_merge, 264);
  AT(entrain_edit_config_t, overlap_mix, 272);
  AT(entrain_edit_config_t, staleness_penalty, 280);
  AT(entrain_edit_config_t, fragments, 284);
  AT(entrain_edit_config_t, outer_momentum_clip, 288);
  AT(entrain_edit_config_t, fragment_of_layer, 296);
  AT(entrain_edit_config_t, fragment_intervals, 304);
  AT(entrain_edit_config_t, fragment_offsets, 312);
  AT(entrain_edit_config_t, fragment_pattern, 320);
  AT(entrain_edit_config_t, sparsify_chunk, 324);
  AT(entrain_edit_config_t, error_decay, 328);
  AT(entrain_edit_config_t, on_loss, 336);
  AT(entrain_edit_config_t, admit, 340);
  AT(entrain_edit_config_t, most_replicas, 344);
  AT(entrain_edit_config_t, admit_store, 352);
  AT(entrain_edit_config_t, admit_name, 360);
  AT(entrain_edit_config_t, anchor_check, 368);
  AT(entrain_edit_config_t, round_deadline, 376);
  AT(entrain_edit_config_t, quorum, 384);
  AT(entrain_edit_config_t, late, 388);
  AT(entrain_edit_config_t, newcomer_warmup, 392);
  AT(entrain_edit_config_t, in_flight_bytes, 400);
  AT(entrain_edit_config_t, identity, 408);
  AT(entrain_edit_config_t, silence, 416);
  AT(entrain_edit_config_t, fetch, 424);
  AT(entrain_edit_config_t, fetch_user, 432);
  AT(entrain_edit_config_t, outer_schedule, 440);
  AT(entrain_edit_config_t, outer_schedule_user, 448);
  AT(entrain_edit_config_t, interval_schedule, 456);
  AT(entrain_edit_config_t, interval_schedule_user, 464);
  AT(entrain_edit_config_t, threads, 472);
  AT(entrain_edit_config_t, reserved, 476);
}

static void check_edit_option(void) {
  SIZE(entrain_option_t, 72);
  AT(entrain_option_t, size, 0);
  AT(entrain_option_t, name, 8);
  AT(entrain_option_t, choices, 16);
  AT(entrain_option_t, help, 24);
  AT(entrain_option_t, offset, 32);
  AT(entrain_option_t, default_value, 40);
  AT(entrain_option_t, least, 48);
  AT(entrain_option_t, most, 56);
  AT(entrain_option_t, type, 64);
  AT(entrain_option_t, open, 68);
}

static void check_edit_replica(void) {
  SIZE(entrain_edit_replica_t, 40);
  AT(entrain_edit_replica_t, size, 0);
  AT(entrain_edit_replica_t, steps, 8);
  AT(entrain_edit_replica_t, steps_since, 16);
  AT(entrain_edit_replica_t, tokens_since, 24);
  AT(entrain_edit_replica_t, wishes, 32);
  AT(entrain_edit_replica_t, leaving, 36);
}

static void check_edit_info(void) {
  SIZE(entrain_edit_info_t, 160);
  AT(entrain_edit_info_t, size, 0);
  AT(entrain_edit_info_t, steps, 8);
  AT(entrain_edit_info_t, syncs, 16);
  AT(entrain_edit_info_t, last_sync_step, 24);
  AT(entrain_edit_info_t, anchor_checksum, 32);
  AT(entrain_edit_info_t, exposed_ns, 40);
  AT(entrain_edit_info_t, sync_ns, 48);
  AT(entrain_edit_info_t, bytes_sent_shard, 56);
  AT(entrain_edit_info_t, bytes_sent_sync, 64);
  AT(entrain_edit_info_t, in_warmup, 72);
  AT(entrain_edit_info_t, wishes, 76);
  AT(entrain_edit_info_t, rendezvous, 80);
  AT(entrain_edit_info_t, metric, 88);
  AT(entrain_edit_info_t, rejections, 96);
  AT(entrain_edit_info_t, rollbacks, 104);
  AT(entrain_edit_info_t, replicas, 112);
  AT(entrain_edit_info_t, losses, 116);
  AT(entrain_edit_info_t, short_rounds, 120);
  AT(entrain_edit_info_t, joins, 128);
  AT(entrain_edit_info_t, replica, 136);
  AT(entrain_edit_info_t, most_replicas, 140);
  AT(entrain_edit_info_t, repairs, 144);
  AT(entrain_edit_info_t, missed, 152);
}

static void check_checkpoint_config(void) {
  SIZE(entrain_checkpoint_config_t, 48);
  AT(entrain_checkpoint_config_t, size, 0);
  AT(entrain_checkpoint_config_t, save_dir, 8);
  AT(entrain_checkpoint_config_t, ckpt_name, 16);
  AT(entrain_checkpoint_config_t, kind, 24);
  AT(entrain_checkpoint_config_t, full_state_dict, 28);
  AT(entrain_checkpoint_config_t, rank0_only, 32);
  AT(entrain_checkpoint_config_t, timeout_ns, 40);
  AT(entrain_checkpoint_config_t, overwrite, 36);
}

static void check_checkpoint_functions(void) {
  SIZE(entrain_checkpoint_functions_t, 48);
  AT(entrain_checkpoint_functions_t, size, 0);
  AT(entrain_checkpoint_functions_t, user, 8);
  AT(entrain_checkpoint_functions_t, write_at, 16);
  AT(entrain_checkpoint_functions_t, finish, 24);
  AT(entrain_checkpoint_functions_t, read_at, 32);
  AT(entrain_checkpoint_functions_t, bytes, 40);
}

static void check_state_info(void) {
  SIZE(entrain_state_info_t, 64);
  AT(entrain_state_info_t, size, 0);
  AT(entrain_state_info_t, name, 8);
  AT(entrain_state_info_t, whole_count, 16);
  AT(entrain_state_info_t, first, 24);
  AT(entrain_state_info_t, count, 32);
  AT(entrain_state_info_t, dtype, 40);
  AT(entrain_state_info_t, holder, 44);
  AT(entrain_state_info_t, layer, 48);
  AT(entrain_state_info_t, part, 52);
  AT(entrain_state_info_t, rank, 56);
  AT(entrain_state_info_t, saves, 60);
}

static void check_acco_config(void) {
  SIZE(entrain_acco_config_t, 224);
  AT(entrain_acco_config_t, size, 0);
  AT(entrain_acco_config_t, params, 8);
  AT(entrain_acco_config_t, count, 16);
  AT(entrain_acco_config_t, params_dtype, 24);
  AT(entrain_acco_config_t, grads_dtype, 28);
  AT(entrain_acco_config_t, wire_dtype, 32);
  AT(entrain_acco_config_t, method, 36);
  AT(entrain_acco_config_t, optim, 40);
  AT(entrain_acco_config_t, step, 48);
  AT(entrain_acco_config_t, user, 56);
  AT(entrain_acco_config_t, min_microbatches, 64);
  AT(entrain_acco_config_t, max_microbatches, 72);
  AT(entrain_acco_config_t, warmup_rounds, 80);
  AT(entrain_acco_config_t, clip_norm, 88);
  AT(entrain_acco_config_t, lr, 96);
  AT(entrain_acco_config_t, min_lr, 104);
  AT(entrain_acco_config_t, schedule_warmup, 112);
  AT(entrain_acco_config_t, schedule_total, 120);
  AT(entrain_acco_config_t, schedule_unit, 128);
  AT(entrain_acco_config_t, limit_unit, 132);
  AT(entrain_acco_config_t, schedule, 136);
  AT(entrain_acco_config_t, schedule_user, 144);
  AT(entrain_acco_config_t, limit, 152);
  AT(entrain_acco_config_t, timeout_ns, 160);
  AT(entrain_acco_config_t, groups, 168);
  AT(entrain_acco_config_t, group_count, 176);
  AT(entrain_acco_config_t, on_loss, 184);
  AT(entrain_acco_config_t, admit, 188);
  AT(entrain_acco_config_t, admit_store, 192);
  AT(entrain_acco_config_t, admit_name, 200);
  AT(entrain_acco_config_t, identity, 208);
  AT(entrain_acco_config_t, silence, 216);
}

static void check_acco_group(void) {
  SIZE(entrain_acco_group_t, 32);
  AT(entrain_acco_group_t, first, 0);
  AT(entrain_acco_group_t, count, 8);
  AT(entrain_acco_group_t, optim, 16);
  AT(entrain_acco_group_t, lr_scale, 24);
}

static void check_acco_info(void) {
  SIZE(entrain_acco_info_t, 136);
  AT(entrain_acco_info_t, size, 0);
  AT(entrain_acco_info_t, rounds, 8);
  AT(entrain_acco_info_t, commits, 16);
  AT(entrain_acco_info_t, gradients, 24);
  AT(entrain_acco_info_t, tokens, 32);
  AT(entrain_acco_info_t, dropped, 40);
  AT(entrain_acco_info_t, microbatches, 48);
  AT(entrain_acco_info_t, lr, 56);
  AT(entrain_acco_info_t, grad_norm, 64);
  AT(entrain_acco_info_t, clip_factor, 72);
  AT(entrain_acco_info_t, committed, 80);
  AT(entrain_acco_info_t, finished, 84);
  AT(entrain_acco_info_t, exposed_ns, 88);
  AT(entrain_acco_info_t, round_ns, 96);
  AT(entrain_acco_info_t, bytes_sent, 104);
  AT(entrain_acco_info_t, bytes_held, 112);
  AT(entrain_acco_info_t, ranks, 120);
  AT(entrain_acco_info_t, losses, 124);
  AT(entrain_acco_info_t, joins, 128);
}

int main(void) {
  check_peer_id();
  check_error();
  check_runtime_config();
  check_work_info();
  check_store_functions();
  check_comm_config();
  check_grow_config();
  check_join_config();
  check_comm_stats();
  check_member();
  check_shrink_config();
  check_call_options();
  check_gta_config();
  check_optim_config();
  check_optim_info();
  check_mesh_config();
  check_shard_config();
  check_shard_layer();
  check_shard_stats();
  check_edit_config();
  check_edit_option();
  check_edit_replica();
  check_edit_info();
  check_checkpoint_config();
  check_checkpoint_functions();
  check_state_info();
  check_acco_config();
  check_acco_group();
  check_acco_info();
  return failures == 0 ? 0 : 1;
}
