/** @file json.c  Writes profile.json; json_read.c reads it. */
// SPDX-License-Identifier: MIT
#include "include/tessera/tessera.h"
#include "profile/profile.h"

/* ------------------------------------------------------------------------------ writing ---- */

void ts_profile_print_text(FILE *out, const char *text)
{
    const char *plain = text; /* start of the characters that need no escape */
    fputc('"', out);
    for (; *text; text++) {
        bool control = (unsigned char)*text < ' ';
        if (!control && *text != '"' && *text != '\\')
            continue;
        fwrite(plain, 1, (size_t)(text - plain), out);
        fprintf(out, control ? "\\u%04x" : "\\%c", *text);
        plain = text + 1;
    }
    fwrite(plain, 1, (size_t)(text - plain), out);
    fputc('"', out);
}

static void print_text(FILE *out, const char *name, const char *text)
{
    fprintf(out, "\"%s\": ", name);
    ts_profile_print_text(out, text);
}

static void print_machine(const ts_prof_machine *m, FILE *out)
{
    print_text(out, "name", m->name);
    fprintf(out,
            ", \"threads\": %d, \"gemm_flops\": %.17g, \"vector_flops\": %.17g, "
            "\"call_ns\": %.17g, \"entry_ns\": %.17g, \"stamp_ns\": %.17g, "
            "\"record_ns\": %.17g, \"measured_at\": %.0f, \"double_flops\": %.17g, "
            "\"kernel_ns\": %.17g,\n"
            "  \"bandwidth\": [",
            m->threads, m->gemm_flops, m->vector_flops, m->call_ns, m->entry_ns, m->stamp_ns,
            m->record_ns, m->measured_at, m->double_flops, m->kernel_ns);
    for (int i = 0; i < TS_PROF_CURVE; i++)
        fprintf(out, "%s[%.0f, %.17g]", i ? ", " : "", m->bytes_at[i], m->bandwidth[i]);
    fputs("]", out);
}

static void print_device(const ts_device_part *d, FILE *out)
{
    fputs("\"device_times\": {", out);
    print_text(out, "source", d->source);
    fputs(", ", out);
    print_text(out, "note", d->note);
    fprintf(out,
            ", \"incomplete\": %s, \"kernels\": %lld, \"copies\": %lld, \"lost\": %lld, "
            "\"untagged\": %lld, \"waits\": %lld, \"allocations\": %lld, "
            "\"late_allocations\": %lld, \"lost_scopes\": %lld, \"kernel_launches\": %lld, "
            "\"delay_ns\": %.17g, \"wait_ns\": %.17g, \"busy_ns\": %.17g, \"idle_ns\": %.17g, "
            "\"untagged_ns\": %.17g, \"measured\": %s, \"half_flops\": %.17g,\n  \"machine\": {",
            d->incomplete ? "true" : "false", (long long)d->kernels, (long long)d->copies,
            (long long)d->lost, (long long)d->untagged, (long long)d->waits,
            (long long)d->allocations, (long long)d->late_allocations, (long long)d->lost_scopes,
            (long long)d->kernel_launches, d->delay_ns, d->wait_ns, d->busy_ns, d->idle_ns,
            d->untagged_ns, d->measured ? "true" : "false", d->machine.half_flops);
    print_machine(&d->machine, out);
    fputs("},\n  \"idle\": {", out);
    for (int i = 0; i < TS_IDLE_COUNT; i++)
        fprintf(out, "%s\"%s\": %.17g", i ? ", " : "", ts_idle_names[i], d->idle[i]);
    fputs("}, ", out);
    print_text(out, "wait_row", d->wait_row);
    fputs(", ", out);
    print_text(out, "kernel", d->kernel);
    fputs("},\n", out);
}

static void print_exposed(const ts_profile *p, FILE *out)
{
    fputs("\"exposed\": [", out);
    for (int64_t i = 0; i < p->nexposed; i++) {
        fprintf(out, "%s\n {\"layer\": %s, ", i ? "," : "", p->exposed[i].layer ? "true" : "false");
        print_text(out, "name", p->exposed[i].name);
        fprintf(out, ", \"ns\": %.17g}", p->exposed[i].ns);
    }
    fputs("],\n", out);
}

static void print_bytes(const char *name, const double *bytes, FILE *out)
{
    fprintf(out, "\"%s\": [", name);
    for (int i = 0; i < TS_OWNERS; i++)
        fprintf(out, "%s%.0f", i ? ", " : "", bytes[i]);
    fputs("]", out);
}

static void print_memory(const ts_memory_part *m, FILE *out)
{
    fputs("\"memory\": {", out);
    print_text(out, "device", m->device);
    fputs(", \"owners\": [", out);
    for (int i = 0; i < TS_OWNERS; i++)
        fprintf(out, "%s\"%s\"", i ? ", " : "", ts_owner_names[i]);
    fprintf(out,
            "],\n \"before\": %.0f, \"capacity\": %.0f, \"peak_ns\": %.0f, \"peak_bytes\": %.0f, "
            "\"lost\": %lld, ",
            m->before, m->capacity, m->peak_ns, m->peak_bytes, (long long)m->lost);
    print_bytes("peak", m->peak, out);
    fputs(",\n \"points\": [", out);
    for (int64_t i = 0; i < m->npoints; i++) {
        fprintf(out, "%s{\"ns\": %.0f, ", i ? ",\n  " : "", m->points[i].ns);
        print_bytes("bytes", m->points[i].bytes, out);
        fputs("}", out);
    }
    fputs("],\n \"holders\": [", out);
    for (int64_t i = 0; i < m->nholders; i++) {
        const ts_memory_holder *h = &m->holders[i];
        fprintf(out, "%s{\"owner\": %d, ", i ? ",\n  " : "", h->owner);
        print_text(out, "op", h->op);
        fputs(", ", out);
        print_text(out, "scope", h->scope);
        fprintf(out, ", \"bytes\": %.0f, \"blocks\": %lld}", h->bytes, (long long)h->blocks);
    }
    fputs("]},\n", out);
}

static void print_shares(const ts_profile_shares *s, FILE *out)
{
    fprintf(out,
            "\"verdict\": \"%s\",\n\"shares\": {\"compute\": %.6f, \"memory\": %.6f, "
            "\"overhead\": %.6f, \"outside\": %.6f, \"profiler\": %.6f, \"unknown\": %.6f},\n",
            s->verdict, s->compute, s->memory, s->overhead, s->outside, s->profiler, s->unknown);
}

static void print_entry(const ts_entry *e, FILE *out)
{
    fputs(" {", out);
    print_text(out, "op", e->op);
    fputs(", ", out);
    print_text(out, "layer", e->layer);
    fputs(", ", out);
    print_text(out, "scope", e->scope);
    fputs(", ", out);
    print_text(out, "call", e->call);
    fprintf(out,
            ", \"dtype\": \"%s\", \"phase\": \"%s\", \"regime\": \"%s\", \"kernel\": %s, "
            "\"product\": %s, \"update\": %s, \"calls\": %lld, \"unknown\": %lld, "
            "\"self_ns\": %.17g, \"flops\": %.17g, \"bytes\": %.17g, \"roof_ns\": %.1f, "
            "\"overhead_ns\": %.1f, \"device_ns\": %.17g, \"kernels\": %lld, "
            "\"delay_ns\": %.17g, \"idle_ns\": %.17g, \"partial_ns\": %.17g, "
            "\"pageable_ns\": %.17g, \"wait_ns\": %.17g, \"part\": \"%s\", \"chained\": %.17g}",
            e->dtype, ts_entry_phase(e), ts_regime_names[e->regime], e->kernel ? "true" : "false",
            e->product ? "true" : "false", e->update ? "true" : "false", (long long)e->calls,
            (long long)e->unknown, e->self_ns, e->flops, e->bytes, e->roof_ns, e->overhead_ns,
            e->device_ns, (long long)e->kernels, e->delay_ns, e->idle_ns, e->partial_ns,
            e->pageable_ns, e->wait_ns, e->part, e->chained);
}

ts_status ts_profile_write_json(const ts_profile *p, FILE *out)
{
    fprintf(out,
            "{\"schema_version\": %d, \"library\": \"%s\", \"device\": \"%s\", "
            "\"measured\": %s, \"threads\": %d,\n",
            TS_PROFILE_SCHEMA, TS_VERSION,
            ts_profile_is_of_device(p) ? p->device.machine.name : "cpu",
            p->measured ? "true" : "false", p->threads);
    fputs("\"machine\": {", out);
    print_machine(&p->machine, out);
    fputs("},\n", out);
    print_device(&p->device, out);
    print_exposed(p, out);
    print_memory(&p->memory, out);
    print_text(out, "command", p->command);
    fputs(",\n", out);
    print_shares(&p->shares, out);
    fprintf(out,
            "\"wall_ns\": %.17g, \"profiler_ns\": %.17g, \"preempted_ns\": %.17g,\n"
            "\"integrity\": {\"missing_share\": %.17g, "
            "\"lost_steps\": %lld, \"shared_calls\": %lld, \"lost_calls\": %lld, "
            "\"overwritten_calls\": %lld, \"errors\": %lld},\n",
            p->wall_ns, p->profiler_ns, p->preempted_ns, p->own_share, (long long)p->lost_steps,
            (long long)p->shared_calls, (long long)p->lost_events, (long long)p->overwritten,
            (long long)p->shares.errors);
    fputs("\"advice\": [", out);
    ts_profile_write_advice(p, out, true);
    fprintf(out, "],\n\"first_step\": %lld,\n\"steps\": [\n", (long long)p->first_step);
    for (int64_t i = 0; i < p->nsteps; i++) {
        const ts_step_times *s = &p->steps[i];
        fprintf(out, " [%.17g, %.17g, %.17g, %.17g, %.17g, %.17g, %.17g]%s\n", s->wall_ns,
                s->kernels_ns, s->layers_ns, s->outside_ns, s->profiler_ns, s->busy_ns, s->idle_ns,
                i + 1 < p->nsteps ? "," : "");
    }
    fputs("],\n\"rows\": [\n", out);
    for (int64_t i = 0; i < p->count; i++) {
        print_entry(&p->entries[i], out);
        fputs(i + 1 < p->count ? ",\n" : "\n", out);
    }
    fputs("]}\n", out);
    return TS_OK;
}
